"""Names of accounts and machines that name nobody, and names of people that are also words."""

from __future__ import annotations

import builtins
import keyword

# Accounts that systems, images and services come with, and words that every log holds: never replaced.
NOBODY = frozenset(
    """
    root user users username admin administrator guest test tests tester testing ubuntu debian fedora centos redhat alpine
    arch rocky alma amazon ec2-user azureuser gcpuser vagrant docker podman container pod node nodes worker workers master
    slave main default owner nobody none null unknown anonymous service daemon system systemd bin sys sync games man mail
    news proxy www-data backup list irc nogroup messagebus sshd ssh dev devel developer prod production staging build
    builder ci cd runner jenkins gitlab gitlab-runner github actions circleci travis buildkite bamboo jovyan jupyter jupyterhub
    notebook colab kaggle sagemaker conda mambauser miniconda anaconda spack slurm hadoop spark airflow ray dask mlflow wandb
    postgres mysql redis mongo elastic nginx apache http https ftp git svn hg nix linuxbrew homebrew steam pi raspberrypi
    odroid nvidia cuda torch pytorch tensorflow keras jax lightning python python3 pip work workspace workdir project projects
    code src source app apps data dataset datasets shared scratch storage home mnt media tmp temp run runs output outputs
    input inputs out log logs cache models model train training trainer trained val valid validation eval evaluate predict
    infer inference batch batches epoch epochs step steps loss losses metric metrics score image images img page pages text
    texts line lines word words box boxes label labels polygon map maps mask masks pixel pixels sample samples seed shard
    token tokens layer layers module conv fusion encoder decoder backbone head neck ocr ocrlab dbnet detector detect
    recognition resnet receipts receipt sroie icdar local localhost localdomain host hostname server client machine box
    computer laptop desktop workstation gpu gpus cpu cuda0 vm vps wsl windows linux macos darwin mac pc lab labs cluster
    cloud compute login head gateway router bastion ai ml dl cv nlp research student students staff demo example sample
    public private all file files folder path name names type types error errors warning info debug fatal failed success
    start stop end begin time date day week month year kernel process thread memory device driver config configs settings
    """.split()
)

# People's names that are words of a language or of this field: only where the text says that a user is meant.
ALSO_WORDS = frozenset(
    """
    ada adam adams alma amber angel angle april art ash august autumn axel basil bay bean bear berry beta bill bishop black
    blue bob bond booth bray brook brooks brown buck bud bush butler carol carter case cash chance chandler chase chip
    christian clark clay cliff clip cole cook cooper coral dale dash dawn day dean dell dick dixie don dot drew duke earl
    early eden eve ever faith fay field finn fisher flora ford forest fox frank gamma gauss gene gill ginger glen grace grant
    gray green grey guy hall hank harmony harp harry hazel heath heather heaven henry hill hope hunt hunter ian ink iris ivy
    jack jade jan jasper java jay jean jet jewel jimmy joe john jordan joy jude judge julia june junior justice justin kay
    ken kim king kit lamb lance lane lars laurel lee leo leslie liberty lily linus long lord lot love low luna lux lynx major
    mark marks marsh mason matt max may mercy mercury merit mike miles mill miller min mint miracle misty mode mona moon moss
    nan nat neon neo nick noble noel nora norm norma north nova olive opal oscar page paige pat patience paul pearl peg penny
    peter phoenix piper pierce poly poppy porter price prince quest quinn rain rand ranger raven ray read red reed reef rex
    rich ridge river rob robin rock rod roll roman rose ross rowan roy ruby rush russ rusty rye sage sally sam sandy saw scala
    scout sea sharp shaw short sienna silver singer sky sleep small smith snow sol star stella sterling stone storm story sue
    sum summer sunny swan swift tab tan tanner taylor temple tensor tiger tim tom toni tony trace tree trip troy truth tucker
    turner ty tyler unity van velvet vera victor vim viola violet virtue walker wall ward warner warren wave way webb west
    white will willow win winter wise wolf wood woods wren wright young zen
    """.split()
) | {name.lower() for name in [*dir(builtins), *keyword.kwlist]}

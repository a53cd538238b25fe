"""Names of accounts and machines that name nobody, and names of people that are also words."""

from __future__ import annotations

import builtins
import keyword

# Accounts that systems, images and services come with, and words that every log holds: never replaced.
NOBODY = frozenset(
    """
    actions admin administrator ai airflow all alma alpine amazon anaconda anonymous apache app apps arch azureuser
    backbone backup bamboo bastion batch batches begin bin box boxes build builder buildkite cache cd centos ci
    circleci client cloud cluster code colab compute computer conda config configs container conv cpu cuda cuda0 cv
    daemon darwin dask data dataset datasets date day dbnet debian debug decoder default demo desktop detect
    detector dev devel developer device dl docker driver ec2-user elastic encoder end epoch epochs error errors eval
    evaluate example failed fatal fedora file files folder ftp fusion games gateway gcpuser git github gitlab
    gitlab-runner gpu gpus guest hadoop head hg home homebrew host hostname http https icdar image images img infer
    inference info input inputs irc jax jenkins jovyan jupyter jupyterhub kaggle keras kernel lab label labels labs
    laptop layer layers lightning line lines linux linuxbrew list local localdomain localhost log login logs loss
    losses mac machine macos mail main mambauser man map maps mask masks master media memory messagebus metric
    metrics miniconda ml mlflow mnt model models module mongo month mysql name names neck news nginx nix nlp nobody
    node nodes nogroup none notebook null nvidia ocr ocrlab odroid out output outputs owner page pages path pc pi
    pip pixel pixels pod podman polygon postgres predict private process prod production project projects proxy
    public python python3 pytorch raspberrypi ray receipt receipts recognition redhat redis research resnet rocky
    root router run runner runs sagemaker sample samples score scratch seed server service settings shard shared
    slave slurm source spack spark src sroie ssh sshd staff staging start steam step steps stop storage student
    students success svn sync sys system systemd temp tensorflow test tester testing tests text texts thread time
    tmp token tokens torch train trained trainer training travis type types ubuntu unknown user username users
    vagrant val valid validation vm vps wandb warning week windows word words work workdir worker workers workspace
    workstation wsl www-data year
    """.split()
)

# People's names that are words of a language or of this field: only where the text says that a user is meant.
ALSO_WORDS = frozenset(
    """
    ada adam adams alma amber angel angle april art ash august autumn axel basil bay bean bear berry beta bill
    bishop black blue bob bond booth bray brook brooks brown buck bud bush butler carol carter case cash chance
    chandler chase chip christian clark clay cliff clip cole cook cooper coral dale dash dawn day dean dell dick
    dixie don dot drew duke earl early eden eve ever faith fay field finn fisher flora ford forest fox frank gamma
    gauss gene gill ginger glen grace grant gray green grey guy hall hank harmony harp harry hazel heath heather
    heaven henry hill hope hunt hunter ian ink iris ivy jack jade jan jasper java jay jean jet jewel jimmy joe john
    jordan joy jude judge julia june junior justice justin kay ken kim king kit lamb lance lane lars laurel lee leo
    leslie liberty lily linus long lord lot love low luna lux lynx major mark marks marsh mason matt max may mercury
    mercy merit mike miles mill miller min mint miracle misty mode mona moon moss nan nat neo neon nick noble noel
    nora norm norma north nova olive opal oscar page paige pat patience paul pearl peg penny peter phoenix pierce
    piper poly poppy porter price prince quest quinn rain rand ranger raven ray read red reed reef rex rich ridge
    river rob robin rock rod roll roman rose ross rowan roy ruby rush russ rusty rye sage sally sam sandy saw scala
    scout sea sharp shaw short sienna silver singer sky sleep small smith snow sol star stella sterling stone storm
    story sue sum summer sunny swan swift tab tan tanner taylor temple tensor tiger tim tom toni tony trace tree
    trip troy truth tucker turner ty tyler unity van velvet vera victor vim viola violet virtue vision walker wall ward
    warner warren wave way webb west white will willow win winter wise wolf wood woods wren wright young zen
    """.split()
) | {name.lower() for name in [*dir(builtins), *keyword.kwlist]}

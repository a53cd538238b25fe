// What a page looks like to a browser: the body of a function that returns everything about it that a test judges.
// Every <details> is opened first, so that what is folded is judged too.
document.querySelectorAll("details").forEach((folded) => { folded.open = true; });
const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const known = new Map();

function rgba(colour) {  // whatever CSS computes, as [r, g, b, alpha] in 0..1
  if (!known.has(colour)) {
    paint.clearRect(0, 0, 1, 1);
    paint.fillStyle = colour;
    paint.fillRect(0, 0, 1, 1);
    known.set(colour, [...paint.getImageData(0, 0, 1, 1).data].map((part) => part / 255));
  }
  return known.get(colour);
}
const over = (top, below, alpha) => below.map((part, i) => top[i] * alpha + part * (1 - alpha));
function luminance(colour) {
  const [r, g, b] = colour.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

const canvas = rgba(getComputedStyle(document.body).backgroundColor).slice(0, 3);
const pictured = [];  // texts on a gradient or a picture, whose ground is not a single colour

// The colours of a text and of its ground, as they are painted from the page down to the text.
function painted(chain, ink, ground) {
  if (chain.length === 0) return [over(ink, ground, ink[3]), ground];
  const [style, ...rest] = chain;
  const back = rgba(style.backgroundColor);
  const mine = over(back, ground, back[3]);
  const opacity = Number(style.opacity);
  return painted(rest, ink, mine).map((colour) => over(colour, ground, opacity));
}

function grounds(text, element, drawn) {  // shapes of a drawing that lie under a text, the lowest first
  const range = document.createRange();
  range.selectNodeContents(text);
  const box = range.getBoundingClientRect();
  const under = document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  const shapes = under.filter((one) => drawn.contains(one) && one instanceof SVGGeometryElement);
  return shapes.reverse().map((one) => [getComputedStyle(one).fill, getComputedStyle(one).fillOpacity])
    .filter(([fill]) => fill !== "none");
}

function faint(text) {
  const element = text.parentElement;
  const drawn = element.closest("svg");
  const style = getComputedStyle(element);
  const chain = [];
  for (let one = element; one && one !== document.documentElement; one = one.parentElement) chain.unshift(getComputedStyle(one));
  const opaque = chain.map((one) => rgba(one.backgroundColor)[3] === 1).lastIndexOf(true);
  if (chain.slice(Math.max(opaque, 0)).some((one) => one.backgroundImage !== "none")) {
    pictured.push(text.data.trim());
    return null;
  }
  let ink = rgba(drawn && !element.closest("foreignObject") ? style.fill : style.color);
  let [colour, ground] = painted(chain, ink, canvas);
  if (drawn) {
    for (const [fill, opacity] of grounds(text, element, drawn)) {
      const shape = rgba(fill);
      ground = over(shape, ground, shape[3] * Number(opacity));
    }
    colour = over(ink, ground, ink[3] * Number(style.fillOpacity));
  }
  const found = contrast(colour, ground);
  const hex = (one) => "#" + one.map((part) => Math.round(part * 255).toString(16).padStart(2, "0")).join("");
  const place = `${element.tagName}.${element.getAttribute("class") ?? ""} in ${element.closest("[class]")?.getAttribute("class")}`;
  return found < 4.5 ? `${found.toFixed(2)} ${hex(colour)} on ${hex(ground)}: ${text.data.trim().slice(0, 40)} (${place})` : null;
}

const texts = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  const shown = element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  if (walker.currentNode.data.trim() && shown && !element.closest("title, desc, style")) texts.push(walker.currentNode);
}

const all = (css) => [...document.querySelectorAll(css)];
const told = (element) => element.outerHTML.slice(0, 120);
const levels = all("h1, h2, h3, h4, h5, h6").map((one) => Number(one.tagName[1]));
const outcome = document.querySelector(".outcome")?.getBoundingClientRect();
return {
  texts: texts.length,
  faint: texts.map(faint).filter(Boolean),
  pictured,
  titles: all("h1").length,
  skipped: levels.filter((level, i) => i > 0 && level > levels[i - 1] + 1),
  language: document.documentElement.lang,
  named: document.title,
  undescribed: all("img").filter((one) => !one.getAttribute("alt")?.trim()).map(told).concat(
    all("svg").filter((one) => !one.closest("[aria-hidden=true]") && !(one.getAttribute("role") === "img"
      && (one.getAttribute("aria-label") || one.querySelector("title"))?.toString().trim())).map(told)),
  headless: all("table").filter((one) => !one.querySelector("th")).map(told),
  broken: all("img").filter((one) => one.complete && one.naturalWidth === 0).map(told),
  twice: all("[id]").map((one) => one.id).filter((id, i, ids) => ids.indexOf(id) !== i),
  dangling: all("a[href^='#']").map((one) => one.getAttribute("href")).filter(
    (href) => !document.getElementById(decodeURIComponent(href.slice(1)))),
  scripts: all("script, iframe, object, embed, link[rel=stylesheet], base, meta[http-equiv=refresh], form").map(told),
  handlers: all("*").flatMap((one) => [...one.attributes]).filter((one) => /^on/i.test(one.name)).map((one) => one.name),
  outcome: outcome ? [Math.round(outcome.top + scrollY), Math.round(outcome.bottom + scrollY)] : null,
  wide: document.documentElement.scrollWidth - innerWidth,
  height: document.documentElement.scrollHeight,
};

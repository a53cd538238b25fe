"""What a synthetic receipt says and where it stands on the paper: wording, rows, columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from ocrlab.data.synthetic.stable_random import Dice
from ocrlab.data.synthetic.typesetting import Piece, length

SHOPS = "Harbour Amber Corner Maple Sunrise Golden Northgate Willow Crown Pioneer Velvet Orchid Delta Summit".split()
TRADES = (
    "Trading|Bakery|Hardware|Pharmacy|Books & Gifts|Mini Mart|Kitchen|Stationery|Electrical|Fresh Market|Coffee House|"
    "Auto Parts|Pet Supplies|Noodle Bar|Optics|Garden Centre"
).split("|")
LEGAL = "LTD|SDN BHD|GMBH|INC.|& SONS|CO.|PTE LTD|ENTERPRISE".split("|")
STREETS = ("Mill Lane|Station Road|Jalan Kenari|King Street|Lorong Damai|Elm Avenue|Canal Walk|Persiaran Indah").split(
    "|"
)
TOWNS = (
    "Ashford|Port Valen|Taman Melur|Kota Rimba|Lindau West|Greyfield|Marlow Hill|Bukit Seri|Old Quay|Sungai Bayu"
).split("|")
GOODS = (
    "Green Tea|Whole Milk 1L|Rye Bread|Butter Cookies|Copper Wire 2.5mm|LED Bulb 9W|Paint Brush No.4|A4 Paper 80g|"
    "Ball Pen Blue|Ginger Ale|Chicken Rice|Iced Latte|Egg Tart (2pc)|Cable Tie 200mm|Wood Screw M4|Hand Soap Lemon|"
    "Vitamin C 500|Cotton Swabs|Dog Biscuits|Rose Soap|Basmati 5kg|Olive Oil|Tomato Paste|Garlic Naan|Fish Cake|"
    "Plain Yoghurt|Mineral Water|Battery AA x4|Tape Measure 5m|Masking Tape|Glue Stick|Exercise Book|Sticky Notes|"
    "Brown Sugar|Soy Sauce 640ml|Instant Noodle|Orange Juice|Dark Chocolate|Apple Crumble|Beef Curry|Mushroom Soup|"
    "Sesame Oil|Paper Cup 50s|Garbage Bag L|Light Switch|Hinge 75mm Steel|PVC Elbow|Drill Bit 6mm|Sandpaper #120"
).split("|")
LABELS = "Date|Invoice No|Cashier|Table|Terminal|Order|Member|Served by|Receipt|Counter|Bill To|Doc No".split("|")
PEOPLE = "Aisha|Marco|Lena P.|Wei Ming|Siti|Jonas|Nadia|R. Kumar|Counter 2|Admin|Paula|Hugo".split("|")
PAYMENT = "Cash|Change|Visa Card|Rounding Adj|Discount|Deposit|Balance Due|Points Earned|Service Charge".split("|")
FOOTER = (
    "Thank you, please come again!|GOODS SOLD ARE NOT RETURNABLE|Exchange within 7 days with receipt|"
    "Have a nice day|Please keep this receipt|Opening hours 9.00am - 9.30pm|Prices include tax|"
    "Follow us for weekly offers|No cash refund|THANK YOU|Customer copy|Powered by TillWorks|Enjoy your meal|"
    "Your feedback matters to us|Parking 2 hours free|*** END OF RECEIPT ***|This is a computer printed invoice"
).split("|")
# (regular, bold, em that makes capitals as high as those of DejaVu, least and greatest stretch)
STYLES = (
    ("DejaVuSansMono", "DejaVuSansMono-Bold", 1.0, 0.82, 0.98),
    ("DejaVuSansMono", "DejaVuSansMono-Bold", 1.0, 0.82, 0.98),
    ("DejaVuSans", "DejaVuSans-Bold", 1.0, 0.78, 0.95),
    ("DejaVuSans-Oblique", "DejaVuSans-BoldOblique", 1.0, 0.8, 0.92),
    ("DejaVuSerif", "DejaVuSerif-Bold", 1.0, 0.8, 0.95),
    ("STIXGeneral", "STIXGeneralBol", 1.1, 0.95, 1.1),
    ("cmtt10", "DejaVuSansMono-Bold", 1.1, 0.9, 1.05),
    ("cmss10", "DejaVuSans-Bold", 1.05, 0.95, 1.1),
)
FRAMES = ((-0.02, 1.02), (-0.02, 0.17, 1.02), (-0.02, 1.02), (-0.02, 0.54, 0.77, 1.02))  # of the item styles
GAP = 1.6  # em between the boxes of one row; SROIE cuts a row where the gap is more than about a line's height
RULES = ("dashes", "dots", "line", "double", "stars")


@dataclass(frozen=True)
class Cell:
    """One text box of a row: `align` is left, centre or right at the fraction `at` of the text column."""

    text: str
    at: float = 0.0
    align: str = "left"


@dataclass(frozen=True)
class Row:
    """Cells side by side, or a `mark` that is not text; `scale` is of the em, `height` of the line pitch."""

    cells: tuple[Cell, ...] = ()
    scale: float = 1.0
    bold: bool = False
    mark: str = ""
    height: float = 1.0
    bar: bool = False  # light letters on a dark bar
    frame: tuple[float, ...] = ()  # where vertical lines stand; boxed in when there are any


@dataclass(frozen=True)
class Mark:
    """Something printed that is not text, in the rectangle x, y, width, height (pixels of paper)."""

    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Sheet:
    """A laid-out receipt, `width` x `height` pixels of paper, without the photograph."""

    width: int
    height: int
    pieces: list[Piece]
    marks: list[Mark]


def price(dice: Dice) -> str:
    """Return an amount such as 12.90 or 1,204.00."""
    whole = dice.whole(0, 99) if dice.chance(0.85) else dice.whole(100, 1999)
    return f"{whole:,}.{dice.whole(0, 9)}{dice.pick('0059')}"


def _centre(text: str, scale: float = 1.0, bold: bool = False) -> Row:
    return Row((Cell(text, 0.5, "centre"),), scale=scale, bold=bold)


def _header(dice: Dice) -> list[Row]:
    shop = f"{dice.pick(SHOPS)} {dice.pick(TRADES)}"
    if dice.chance(0.5):
        shop = shop.upper()
    rows = [Row(mark="logo", height=dice.between(2.5, 4))] if dice.chance(0.45) else []
    rows += [_centre(shop, dice.between(1.15, 1.7), True)]
    if dice.chance(0.6):
        rows.append(_centre(f"{dice.pick(LEGAL)} ({dice.digits('######')}-{dice.pick('KMTUVX')})"))
    address = [
        f"No. {dice.whole(1, 99)}, {dice.pick(STREETS)} {dice.whole(1, 30)},",
        f"{dice.digits('#####')} {dice.pick(TOWNS)}",
    ]
    rows += [_centre(text.upper() if dice.chance(0.3) else text) for text in address]
    phone, fax = dice.digits("Tel: 0#-########"), dice.digits("Fax: 0#-########")
    if dice.chance(0.4):
        rows.append(Row((Cell(phone), Cell(fax, 1, "right"))))
    else:
        rows.append(_centre(phone))
    if dice.chance(0.5):
        rows.append(_centre(dice.digits("Tax ID: ############")))
    if dice.chance(0.6):
        rows += [Row(height=0.5), _centre(dice.pick(["TAX INVOICE", "CASH BILL", "RECEIPT"]), 1.2, True)]
    return rows


def _details(dice: Dice) -> list[Row]:
    style = dice.whole(0, 2)
    rows = []
    for place in range(dice.whole(2, 4)):
        label = "Date" if place == 0 else dice.pick(LABELS)
        date = f"{dice.whole(1, 28):02}/{dice.whole(1, 12):02}/20{dice.whole(15, 25)}"
        other = dice.pick([dice.pick(PEOPLE), dice.digits("#####"), dice.digits("A##-####")])
        value = date if label == "Date" else other
        clock = f"{dice.whole(8, 21):02}:{dice.whole(0, 59):02}"
        if style == 0:
            rows.append(Row((Cell(f"{label}: {value}"),)))
        elif style == 1:
            rows.append(Row((Cell(f"{label}:"), Cell(value, 0.42))))
        else:
            rows.append(Row((Cell(f"{label}: {value}"), Cell(clock if place == 0 else dice.digits("###"), 1, "right"))))
    return rows


def _heading(style: int) -> Row:
    amount = Cell("Amount", 1, "right")
    if style == 0:
        return Row((Cell("Item"), amount), bold=True)
    if style == 1:
        return Row((Cell("Qty"), Cell("Description", 0.22), amount), bold=True)
    return Row((Cell("Item"), Cell("Qty", 0.52, "right"), Cell("Price", 0.75, "right"), amount), bold=True)


def _item(dice: Dice, style: int, code: bool) -> list[Row]:
    name = dice.pick(GOODS)
    amount, count = Cell(price(dice), 1, "right"), dice.pick(["x{}", "{} pc", "1{}", "2{}"]).format(dice.whole(1, 9))
    if style == 0:
        return [Row((Cell(f"{count} {name}"), amount))]
    if style == 1:
        return [Row((Cell(count), Cell(name, 0.22), amount))]
    name = dice.digits("######## ") + name if code else name
    numbers = (Cell(count, 0.52, "right"), Cell(price(dice), 0.75, "right"), amount)
    return [Row((Cell(name),)), Row(numbers)] if style == 2 else [Row((Cell(name), *numbers))]


def _totals(dice: Dice, currency: str) -> list[Row]:
    column, align = dice.pick([(0.0, "left"), (0.7, "right"), (0.3, "left")])
    rows = [Row((Cell("Subtotal", column, align), Cell(price(dice), 1, "right")))]
    if dice.chance(0.6):
        rows.append(Row((Cell(f"Tax {dice.whole(5, 21)}%", column, align), Cell(price(dice), 1, "right"))))
    total = dice.pick(["TOTAL", "Total", "Amount Due", "GRAND TOTAL"]) + (f" ({currency})" if dice.chance(0.5) else "")
    amount = price(dice) if "(" in total else currency + price(dice)
    rows.append(Row((Cell(total, column, align), Cell(amount, 1, "right")), dice.between(1.0, 1.45), True))
    for label in sorted({dice.pick(PAYMENT) for _ in range(dice.whole(1, 3))}):
        rows.append(Row((Cell(label, column, align), Cell(price(dice), 1, "right"))))
    return rows


def _footer(dice: Dice) -> list[Row]:
    texts = sorted({dice.pick(FOOTER) for _ in range(dice.whole(2, 4))})
    rows = [_centre(text.upper() if dice.chance(0.25) else text) for text in texts]
    if dice.chance(0.5):
        rows.insert(dice.whole(0, len(rows)), Row(mark="barcode", height=dice.between(2.2, 3.4)))
    return rows


def rows(dice: Dice) -> list[Row]:
    """Return a receipt from top to bottom, with 37 to 60 text boxes."""
    style, code = dice.whole(0, 3), dice.chance(0.4)
    rule = Row(mark=dice.pick(RULES), height=dice.between(0.5, 0.8))
    gap = Row(height=dice.between(0.2, 0.9))
    head, details, foot = _header(dice), _details(dice), _footer(dice)
    totals = _totals(dice, dice.pick(["$", "RM", "EUR"]))
    goal = dice.whole(37, 57)
    bar, framed = dice.chance(0.3), dice.chance(0.3)
    heading = replace(_heading(style), bar=bar)
    if bar:
        totals = [replace(row, bar=row.bold) for row in totals]
    frame = FRAMES[style] if framed else ()
    boxes = sum(len(row.cells) for row in [*head, *details, heading, *totals, *foot])
    items: list[Row] = []
    while boxes < goal:
        item = _item(dice, style, code)
        items += [replace(row, frame=frame) for row in item]
        boxes += sum(len(row.cells) for row in item)
    if dice.chance(0.3):
        totals = [replace(row, frame=(-0.02, 1.02) if row.bold and not row.bar else ()) for row in totals]
    between = [rule] if dice.chance(0.8) else [gap]
    return [*head, gap, *details, *between, heading, *between, *items, *between, *totals, *between, gap, *foot]


def shorten(text: str, font: str, size: float, stretch: float, room: float) -> str:
    """Return as many leading words of `text` as fit into `room` pixels, and at least two characters of it."""
    while len(text) > 2 and length(text, font, size, stretch) > room:
        text = text.rpartition(" ")[0].rstrip() or text[:-1]
    return text


def _place(row: Row, font: str, size: float, stretch: float, left: float, column: float, y: float) -> list[Piece]:
    """Return the pieces of one row; cells that stand left of another are cut to leave a clear gap before it."""
    pieces: list[Piece] = []
    limit = left + column
    for cell in reversed(row.cells):
        start = left + cell.at * column
        stop = min(start, limit) if cell.align == "right" else limit
        room = stop - (start if cell.align == "left" else left)
        text = shorten(cell.text, font, size, stretch, room)
        wide = length(text, font, size, stretch)
        if wide <= room:
            x = start if cell.align == "left" else stop - wide if cell.align == "right" else start - wide / 2
            pieces.insert(0, Piece(text, font, x, y, size, stretch, row.bar))
            limit = x - GAP * size
    return pieces


def layout(dice: Dice, width: int, height: int) -> Sheet:
    """Return a receipt that fits into `width` x `height` pixels of paper."""
    content = rows(dice)
    regular, bold, factor, low, high = dice.pick(STYLES)
    stretch = dice.between(low, high)
    pad_x, pad_y = width * dice.between(0.05, 0.09), height * dice.between(0.025, 0.05)
    column = width - 2 * pad_x
    lines = sum(row.height * max(row.scale, 1.0) for row in content)
    em = min(height * dice.between(0.0113, 0.0265), column / 22)
    pitch = min(dice.between(1.2, 1.7), max(1.16, (height - 2 * pad_y) / (lines * em)))
    em = min(em, (height - 2 * pad_y) / (lines * pitch))
    pieces: list[Piece] = []
    marks: list[Mark] = []
    if dice.chance(0.2):
        marks.append(Mark("watermark", pad_x, height * dice.between(0.1, 0.5), column, column))
    y = pad_y
    for row in content:
        tall = row.height * max(row.scale, 1.0) * pitch * em
        if row.mark:
            marks.append(Mark(row.mark, pad_x, y, column, tall))
        if row.bar:
            marks.append(Mark("bar", pad_x - 0.02 * column, y, 1.04 * column, tall))
        for start, stop in pairwise(row.frame):
            marks.append(Mark("box", pad_x + start * column, y, (stop - start) * column, tall))
        size = round(em * factor * row.scale * 2) / 2  # a whole number of pixels in the ink plane
        font = bold if row.bold else regular
        middle = y + tall / 2 + 0.36 * em * row.scale
        pieces += _place(row, font, size, stretch, pad_x, column, middle)
        y += tall
    return Sheet(width, min(height, round(y + pad_y)), pieces, marks)

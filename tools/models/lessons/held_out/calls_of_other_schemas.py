"""Families of requests for calls whose schemas or words no lesson has; their phrasings are plain."""

from tools.models.lessons.held_out.family import (
    INTEGER,
    TEXT,
    TOOLS,
    TRUTH,
    Family,
    an_object,
    call,
    one_of,
    tool,
)

NESTED = Family(
    name="an object in the arguments",
    ability=TOOLS,
    holds_out="schemas",
    shapes=("object in an object",),
    tools=(
        tool("ship_crate", "Ship a crate to a port", crate=an_object(width=INTEGER, height=INTEGER), port=TEXT),
        tool("berth_boat", "Give a boat a berth", boat=an_object(skipper=TEXT, masts=INTEGER), berth=INTEGER),
        tool("whistle_foghorn", "Sound the foghorn", seconds=INTEGER),
    ),
    tasks=(
        call("Ship a crate with width 40 and height 60 to the port Rotterdam.", "ship_crate", crate={"width": 40, "height": 60}, port="Rotterdam"),
        call("Ship to the port Gdynia a crate of width 25 and height 30.", "ship_crate", crate={"width": 25, "height": 30}, port="Gdynia"),
        call("Ship a crate: width 75, height 50, port Valparaiso.", "ship_crate", crate={"width": 75, "height": 50}, port="Valparaiso"),
        call("Please ship a crate to the port Mombasa, height 35 and width 45.", "ship_crate", crate={"width": 45, "height": 35}, port="Mombasa"),
        call("Give berth 12 to the boat of the skipper Anneliese with 2 masts.", "berth_boat", boat={"skipper": "Anneliese", "masts": 2}, berth=12),
        call("Berth a boat: skipper Thaddeus, masts 3, berth 7.", "berth_boat", boat={"skipper": "Thaddeus", "masts": 3}, berth=7),
        call("Berth 21 for a boat with 1 masts and the skipper Leopold.", "berth_boat", boat={"skipper": "Leopold", "masts": 1}, berth=21),
        call("The boat has the skipper Philippa and 4 masts, give it berth 16.", "berth_boat", boat={"skipper": "Philippa", "masts": 4}, berth=16),
    ),
)  # fmt: skip

LISTED = Family(
    name="a list of objects in the arguments",
    ability=TOOLS,
    holds_out="schemas",
    shapes=("objects in a list",),
    tools=(
        tool("order_pastries", "Order pastries", items={"type": "array", "items": an_object(pastry=TEXT, pieces=INTEGER)}),
        tool("seat_choir", "Seat the singers of a choir", seats={"type": "array", "items": an_object(singer=TEXT, bench=INTEGER)}),
        tool("toll_bell", "Toll the bell", strokes=INTEGER),
    ),
    tasks=(
        call("Order the pastry brioche, 3 pieces.", "order_pastries", items=[{"pastry": "brioche", "pieces": 3}]),
        call("Order 2 pieces of the pastry croissant.", "order_pastries", items=[{"pastry": "croissant", "pieces": 2}]),
        call("Order the pastry madeleine, 6 pieces, and the pastry brioche, 4 pieces.", "order_pastries", items=[{"pastry": "madeleine", "pieces": 6}, {"pastry": "brioche", "pieces": 4}]),
        call("Order pastries: croissant, 5 pieces, and eclair, 8 pieces.", "order_pastries", items=[{"pastry": "croissant", "pieces": 5}, {"pastry": "eclair", "pieces": 8}]),
        call("Seat the singer Octavia on bench 3.", "seat_choir", seats=[{"singer": "Octavia", "bench": 3}]),
        call("Seat the singer Ignatius on bench 1 and the singer Winifred on bench 2.", "seat_choir", seats=[{"singer": "Ignatius", "bench": 1}, {"singer": "Winifred", "bench": 2}]),
        call("Seat the choir: Cornelius on bench 4, Marguerite on bench 6.", "seat_choir", seats=[{"singer": "Cornelius", "bench": 4}, {"singer": "Marguerite", "bench": 6}]),
        call("Bench 5 is the seat of the singer Bartholomew in the choir.", "seat_choir", seats=[{"singer": "Bartholomew", "bench": 5}]),
    ),
)  # fmt: skip

SPARSE = Family(
    name="many parameters, few of them given",
    ability=TOOLS,
    holds_out="schemas",
    shapes=("more than four parameters",),
    tools=(
        tool("plan_cruise", "Plan a cruise from a port", required=("port",), port=TEXT, nights=INTEGER, cabin=one_of("suite", "bunk"), buffet=TRUTH, deck=INTEGER, steward=TEXT),
        tool("brew_tea", "Brew tea", required=("tea",), tea=TEXT, minutes=INTEGER, sugar=TRUTH, lemon=TRUTH, cups=INTEGER, pot=one_of("porcelain", "samovar")),
    ),
    tasks=(
        call("Plan a cruise from the port Piraeus.", "plan_cruise", port="Piraeus"),
        call("Plan a cruise from the port Dubrovnik for 9 nights.", "plan_cruise", port="Dubrovnik", nights=9),
        call("Plan a cruise with the port Valparaiso and the cabin suite.", "plan_cruise", port="Valparaiso", cabin="suite"),
        call("Plan a cruise from the port Mombasa on deck 4.", "plan_cruise", port="Mombasa", deck=4),
        call("Plan a cruise from the port Gdynia with the steward Leopold.", "plan_cruise", port="Gdynia", steward="Leopold"),
        call("Brew the tea darjeeling.", "brew_tea", tea="darjeeling"),
        call("Brew the tea oolong for 5 minutes.", "brew_tea", tea="oolong", minutes=5),
        call("Brew the tea rooibos with sugar.", "brew_tea", tea="rooibos", sugar=True),
        call("Brew 3 cups of the tea matcha in the samovar.", "brew_tea", tea="matcha", cups=3, pot="samovar"),
    ),
)  # fmt: skip

KEYWORDS = Family(
    name="ranges, enums of numbers, several types",
    ability=TOOLS,
    holds_out="schemas",
    shapes=("enum of numbers", "several types", "range"),
    tools=(
        tool("shift_gear", "Shift to a gear", gear={"type": "integer", "enum": [1, 2, 3, 4]}),
        tool("pour_paint", "Pour some paint", litres={"type": "number", "minimum": 0.5, "maximum": 20}),
        tool("park_tractor", "Park a tractor in a bay", driver=TEXT, bay={"type": ["integer", "null"]}),
    ),
    tasks=(
        call("Shift to gear 3.", "shift_gear", gear=3),
        call("Please shift to the gear 1", "shift_gear", gear=1),
        call("Can you shift the gear to 4?", "shift_gear", gear=4),
        call("Pour 2.5 litres of paint.", "pour_paint", litres=2.5),
        call("Pour the paint, litres: 7.5", "pour_paint", litres=7.5),
        call("Pour paint with litres set to 1.5.", "pour_paint", litres=1.5),
        call("Park the tractor of the driver Winifred in bay 8.", "park_tractor", driver="Winifred", bay=8),
        call("Park the tractor: driver Ingeborg, bay 14.", "park_tractor", driver="Ingeborg", bay=14),
        call("Park the tractor with bay 2 and the driver Matthijs.", "park_tractor", driver="Matthijs", bay=2),
    ),
)  # fmt: skip

LETTERS = Family(
    name="words with letters that English lacks",
    ability=TOOLS,
    holds_out="words",
    tools=(
        tool("city_rainfall", "Get the rainfall of a city", city=TEXT),
        tool("invite_violinist", "Invite a violinist", violinist=TEXT, evenings=INTEGER),
        tool("tune_organ", "Tune an organ", organ=TEXT),
    ),
    tasks=(
        call("Get the rainfall in Łódź", "city_rainfall", city="Łódź"),
        call("Show me the rainfall of Malmö.", "city_rainfall", city="Malmö"),
        call("Tell me the rainfall in Besançon", "city_rainfall", city="Besançon"),
        call("Please get the rainfall for Kołobrzeg.", "city_rainfall", city="Kołobrzeg"),
        call("Invite the violinist Björn for 2 evenings.", "invite_violinist", violinist="Björn", evenings=2),
        call("Please invite a violinist with violinist Žofia and evenings 3.", "invite_violinist", violinist="Žofia", evenings=3),
        call("Invite the violinist with the name Søren, evenings: 5", "invite_violinist", violinist="Søren", evenings=5),
        call("Tune the organ of Würzburg", "tune_organ", organ="Würzburg"),
        call("Tune the organ called Çelebi.", "tune_organ", organ="Çelebi"),
    ),
)  # fmt: skip

UNKNOWN = Family(
    name="other words in plain requests",
    ability=TOOLS,
    holds_out="words",
    tools=(
        tool("polish_trombone", "Polish a trombone", trombonist=TEXT),
        tool("knit_cardigan", "Knit a cardigan", yarn=TEXT, stitches=INTEGER),
        tool("prune_orchard", "Prune an orchard", orchard=TEXT, ladders=INTEGER),
        tool("fold_origami", "Fold an origami", motif=TEXT),
    ),
    tasks=(
        call("Polish the trombone of Gwendolyn", "polish_trombone", trombonist="Gwendolyn"),
        call("Please polish a trombone for Ferdinand.", "polish_trombone", trombonist="Ferdinand"),
        call("Knit a cardigan with yarn mohair and stitches 120.", "knit_cardigan", yarn="mohair", stitches=120),
        call("Knit the cardigan: yarn merino, stitches 88", "knit_cardigan", yarn="merino", stitches=88),
        call("Can you knit a cardigan with 96 stitches and the yarn alpaca?", "knit_cardigan", yarn="alpaca", stitches=96),
        call("Prune the orchard Avalon with 4 ladders.", "prune_orchard", orchard="Avalon", ladders=4),
        call("Prune an orchard, orchard: Hesperia, ladders: 2", "prune_orchard", orchard="Hesperia", ladders=2),
        call("Fold an origami with the motif dragonfly", "fold_origami", motif="dragonfly"),
        call("Please fold the origami hummingbird.", "fold_origami", motif="hummingbird"),
        call("I want to fold an origami called stegosaurus", "fold_origami", motif="stegosaurus"),
    ),
)  # fmt: skip

FAMILIES = (NESTED, LISTED, SPARSE, KEYWORDS, LETTERS, UNKNOWN)

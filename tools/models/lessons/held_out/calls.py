"""Families of requests for calls with phrasings that no lesson has."""

from tools.models.lessons.held_out.family import (
    INTEGER,
    NUMBER,
    TEXT,
    TOOLS,
    Family,
    Task,
    call,
    one_of,
    tool,
)

INDIRECT = Family(
    name="asked indirectly",
    ability=TOOLS,
    holds_out="phrasings",
    markers=("i was wondering", "any chance", "would it be possible", "happen to know", "im curious", "is there any way"),
    tools=(
        tool("ferry_times", "When ferries leave a harbour", harbour=TEXT),
        tool("tide_height", "How high the tide is at a beach", beach=TEXT, hour=INTEGER),
        tool("pharmacy_finder", "Find a pharmacy in a district", district=TEXT),
    ),
    tasks=(
        call("I was wondering when the ferries leave from Hoorn.", "ferry_times", harbour="Hoorn"),
        call("Any chance you could look up the ferries out of Brindisi?", "ferry_times", harbour="Brindisi"),
        call("Would it be possible to see the ferry departures at Piraeus?", "ferry_times", harbour="Piraeus"),
        call("Do you happen to know how high the tide is at Zandvoort at 17?", "tide_height", beach="Zandvoort", hour=17),
        call("I'm curious how the tide stands at Biarritz at 6.", "tide_height", beach="Biarritz", hour=6),
        call("Is there any way to get the tide at Whitstable for hour 21?", "tide_height", beach="Whitstable", hour=21),
        call("Any chance there's a pharmacy in Kreuzberg?", "pharmacy_finder", district="Kreuzberg"),
        call("I was wondering if Montmartre has a pharmacy.", "pharmacy_finder", district="Montmartre"),
        call("Do you happen to know a pharmacy in Shoreditch?", "pharmacy_finder", district="Shoreditch"),
        call("Would it be possible to find me a pharmacy around Trastevere?", "pharmacy_finder", district="Trastevere"),
    ),
)  # fmt: skip

WISHED = Family(
    name="wished for, without the tool's verb",
    ability=TOOLS,
    holds_out="phrasings",
    markers=("it would be lovely", "i could really do with", "im in the mood", "ive been craving", "id give anything"),
    tools=(
        tool("order_dessert", "Order a dessert", dessert=TEXT),
        tool("fill_bathtub", "Fill the bathtub with water of this temperature", celsius=INTEGER),
        tool("stream_podcast", "Play the newest episode of a podcast", podcast=TEXT),
    ),
    tasks=(
        call("It would be lovely to have some tiramisu.", "order_dessert", dessert="tiramisu"),
        call("I could really do with a pavlova.", "order_dessert", dessert="pavlova"),
        call("I'm in the mood for baklava.", "order_dessert", dessert="baklava"),
        call("I've been craving strudel all afternoon.", "order_dessert", dessert="strudel"),
        call("I could really do with a bath of 38 degrees.", "fill_bathtub", celsius=38),
        call("It would be lovely to soak in 41 degrees.", "fill_bathtub", celsius=41),
        call("I'm in the mood for the podcast Serendipity.", "stream_podcast", podcast="Serendipity"),
        call("I'd give anything for a new episode of Heliotrope.", "stream_podcast", podcast="Heliotrope"),
        call("It would be lovely to listen to Wanderlust.", "stream_podcast", podcast="Wanderlust"),
    ),
)  # fmt: skip

UNITS = Family(
    name="imperative with a number and a unit",
    ability=TOOLS,
    holds_out="phrasings",
    markers=("preheat", "fast forward", "inflate", "nudge"),
    tools=(
        tool("preheat_oven", "Preheat the oven", celsius=INTEGER),
        tool("skip_ahead", "Skip a part of the film", seconds=INTEGER),
        tool("inflate_tyre", "Inflate the tyre of the bike", bar=NUMBER),
        tool("raise_blinds", "Raise the blinds", percent=INTEGER),
    ),
    tasks=(
        call("Preheat the oven to 190 degrees", "preheat_oven", celsius=190),
        call("Preheat to 225 °C.", "preheat_oven", celsius=225),
        call("Preheat at 160 degrees for the lasagne", "preheat_oven", celsius=160),
        call("Fast-forward 45 seconds", "skip_ahead", seconds=45),
        call("Fast forward the film by 90 s.", "skip_ahead", seconds=90),
        call("Inflate the tyre to 2.4 bar.", "inflate_tyre", bar=2.4),
        call("Inflate it to 3.1 bar", "inflate_tyre", bar=3.1),
        call("Inflate the front tyre up to 2.8 bars.", "inflate_tyre", bar=2.8),
        call("Nudge the blinds up by 15 percent", "raise_blinds", percent=15),
        call("Nudge the blinds 60%", "raise_blinds", percent=60),
    ),
)  # fmt: skip

PEOPLE = Family(
    name="two people in one sentence",
    ability=TOOLS,
    holds_out="phrasings",
    markers=("on behalf of", "in the name of", "bike over to", "riding the bike", "acquaint"),
    tools=(
        tool("bring_greeting", "Bring a greeting to somebody", sender=TEXT, addressee=TEXT),
        tool("lend_bicycle", "Note who lends a bike to whom", lender=TEXT, borrower=TEXT),
        tool("introduce_newcomer", "Introduce a newcomer to the host", newcomer=TEXT, host=TEXT),
    ),
    tasks=(
        call("On behalf of Siobhan, say hello to Matthijs.", "bring_greeting", sender="Siobhan", addressee="Matthijs"),
        call("Say hello to Ingeborg on behalf of Thaddeus.", "bring_greeting", sender="Thaddeus", addressee="Ingeborg"),
        call("Greet Anneliese in the name of Bartholomew.", "bring_greeting", sender="Bartholomew", addressee="Anneliese"),
        call("In the name of Oluwaseun, greet Philippa.", "bring_greeting", sender="Oluwaseun", addressee="Philippa"),
        call("Marguerite hands her bike over to Cornelius.", "lend_bicycle", lender="Marguerite", borrower="Cornelius"),
        call("Cornelius hands his bike over to Winifred.", "lend_bicycle", lender="Cornelius", borrower="Winifred"),
        call("Thaddeus will be riding the bike that Siobhan owns.", "lend_bicycle", lender="Siobhan", borrower="Thaddeus"),
        call("Acquaint Octavia, who is new here, with Leopold, our host.", "introduce_newcomer", newcomer="Octavia", host="Leopold"),
        call("With Leopold as our host, acquaint Matthijs, the newcomer.", "introduce_newcomer", newcomer="Matthijs", host="Leopold"),
        call("Philippa is new here. Acquaint her with our host Ignatius.", "introduce_newcomer", newcomer="Philippa", host="Ignatius"),
    ),
)  # fmt: skip

POSSESSIVE = Family(
    name="possessive at the beginning",
    ability=TOOLS,
    holds_out="phrasings",
    markers=("luggage", "prescription"),
    tools=(
        tool("trace_luggage", "Trace the luggage of a passenger", passenger=TEXT),
        tool("renew_prescription", "Renew the prescription of a patient", patient=TEXT, months=INTEGER),
        tool("greet_passenger", "Greet a passenger", passenger=TEXT),
    ),
    tasks=(
        call("Wilhelmina's luggage never turned up, trace it.", "trace_luggage", passenger="Wilhelmina"),
        call("Thaddeus's luggage, where has it got to?", "trace_luggage", passenger="Thaddeus"),
        call("Anneliese's luggage is missing.", "trace_luggage", passenger="Anneliese"),
        call("This morning's luggage belongs to Philippa. Trace it.", "trace_luggage", passenger="Philippa"),
        call("Yesterday's luggage was lost by Leopold, trace it.", "trace_luggage", passenger="Leopold"),
        call("Cornelius's prescription runs out, renew it for 6 months.", "renew_prescription", patient="Cornelius", months=6),
        call("Marguerite's prescription needs another 3 months.", "renew_prescription", patient="Marguerite", months=3),
        call("Octavia's prescription: 12 months more.", "renew_prescription", patient="Octavia", months=12),
        call("Today's prescription is for Ignatius, 4 months.", "renew_prescription", patient="Ignatius", months=4),
        call("Siobhan's old prescription should be renewed for 9 months.", "renew_prescription", patient="Siobhan", months=9),
    ),
)  # fmt: skip

OPPOSITES = Family(
    name="an enum's value, or its opposite",
    ability=TOOLS,
    holds_out="phrasings",
    markers=("anything but", "as opposed to", "rather than", "a far cry from"),
    tools=(
        tool("mow_lawn", "Mow the lawn", pace=one_of("leisurely", "brisk")),
        tool("move_shutter", "Move the shutter", position=one_of("ajar", "sealed")),
        tool("season_soup", "Season the soup", flavour=one_of("savoury", "spicy", "bland")),
    ),
    tasks=(
        call("Mow the lawn, and anything but brisk.", "mow_lawn", pace="leisurely"),
        call("Mow the lawn at a brisk pace as opposed to leisurely.", "mow_lawn", pace="brisk"),
        call("Leisurely rather than brisk, mow the lawn.", "mow_lawn", pace="leisurely"),
        call("Mow the lawn, a far cry from leisurely.", "mow_lawn", pace="brisk"),
        call("Rather than leave the shutter ajar, have it sealed.", "move_shutter", position="sealed"),
        call("The shutter: ajar as opposed to sealed.", "move_shutter", position="ajar"),
        call("I want the shutter anything but sealed.", "move_shutter", position="ajar"),
        call("Season the soup, spicy rather than bland.", "season_soup", flavour="spicy"),
        call("Season the soup bland as opposed to savoury or spicy.", "season_soup", flavour="bland"),
        call("Anything but spicy or bland: season the soup.", "season_soup", flavour="savoury"),
    ),
)  # fmt: skip

REASON_FIRST = Family(
    name="a reason before the request",
    ability=TOOLS,
    holds_out="phrasings",
    markers=("seeing that", "now that", "on account of", "given how"),
    tools=(
        tool("close_awning", "Close the awning of a terrace", terrace=TEXT),
        tool("reheat_dish", "Reheat a dish", dish=TEXT, minutes=INTEGER),
        tool("charge_scooter", "Charge a scooter", scooter=TEXT),
    ),
    tasks=(
        call("Seeing that it's pouring, close the awning of the Belvedere.", "close_awning", terrace="Belvedere"),
        call("On account of the storm, close the awning of the Miramar.", "close_awning", terrace="Miramar"),
        call("Given how bright it is, the awning of the Alhambra should be closed.", "close_awning", terrace="Alhambra"),
        call("Given how cold it has got, reheat the goulash for 7 minutes.", "reheat_dish", dish="goulash", minutes=7),
        call("Seeing that nobody ate it, reheat the paella for 4 minutes.", "reheat_dish", dish="paella", minutes=4),
        call("On account of all these guests, reheat the ratatouille for 11 minutes.", "reheat_dish", dish="ratatouille", minutes=11),
        call("Now that the battery is nearly flat, charge the scooter Vespucci.", "charge_scooter", scooter="Vespucci"),
        call("Now that I'm back, charge the scooter Garibaldi.", "charge_scooter", scooter="Garibaldi"),
        call("Seeing that I ride tomorrow, charge the scooter Amundsen.", "charge_scooter", scooter="Amundsen"),
    ),
)  # fmt: skip

CORRECTED = Family(
    name="corrected in the same sentence",
    ability=TOOLS,
    holds_out="phrasings",
    markers=("no wait", "scratch that", "sorry i meant", "better make it"),
    tools=(
        tool("reserve_kayaks", "Reserve kayaks on a lagoon", kayaks=INTEGER, lagoon=TEXT),
        tool("book_sauna", "Book a sauna for some bathers", sauna=TEXT, bathers=INTEGER),
        tool("buy_skis", "Buy skis of this length", centimetres=INTEGER),
    ),
    tasks=(
        call("Reserve 3 kayaks, no wait, 5 kayaks on the lagoon Comacchio.", "reserve_kayaks", kayaks=5, lagoon="Comacchio"),
        call("Reserve 4 kayaks on the lagoon Orbetello. Scratch that, 2 kayaks.", "reserve_kayaks", kayaks=2, lagoon="Orbetello"),
        call("2 kayaks on the lagoon Grado, sorry, I meant 6.", "reserve_kayaks", kayaks=6, lagoon="Grado"),
        call("Reserve 3 kayaks on Comacchio, no wait, on Orbetello.", "reserve_kayaks", kayaks=3, lagoon="Orbetello"),
        call("Book the sauna Kalevala for 4 bathers, better make it 7.", "book_sauna", sauna="Kalevala", bathers=7),
        call("Book the sauna Kalevala for 8 bathers. Scratch that, for 9.", "book_sauna", sauna="Kalevala", bathers=9),
        call("Book the sauna Ilmarinen, sorry, I meant Kalevala, for 5 bathers.", "book_sauna", sauna="Kalevala", bathers=5),
        call("Buy skis of 170 centimetres, better make it 165.", "buy_skis", centimetres=165),
        call("Buy skis of 150, no wait, 155 centimetres.", "buy_skis", centimetres=155),
    ),
)  # fmt: skip

TELEGRAM = Family(
    name="as in a short message",
    ability=TOOLS,
    holds_out="phrasings",
    markers=("pls", "asap", "tia"),
    tools=(
        tool("charter_yacht", "Charter a yacht at a marina", marina=TEXT, days=INTEGER),
        tool("repair_gutter", "Repair the gutter of an estate", estate=TEXT),
        tool("rent_scaffold", "Rent a scaffold", metres=INTEGER),
    ),
    tasks=(
        call("yacht pls, marina Portofino, 4 days", "charter_yacht", marina="Portofino", days=4),
        call("charter yacht Dubrovnik 9 days tia", "charter_yacht", marina="Dubrovnik", days=9),
        call("pls yacht @ Kotor, 3 days, asap", "charter_yacht", marina="Kotor", days=3),
        call("yacht in Rovinj, 6 days, asap", "charter_yacht", marina="Rovinj", days=6),
        call("gutter leaks @ Pemberley pls fix asap", "repair_gutter", estate="Pemberley"),
        call("fix gutter Manderley asap tia", "repair_gutter", estate="Manderley"),
        call("Thornfield gutter drips, repair pls", "repair_gutter", estate="Thornfield"),
        call("scaffold 12 metres pls", "rent_scaffold", metres=12),
        call("need scaffold asap, 20 m, tia", "rent_scaffold", metres=20),
    ),
)  # fmt: skip


def _both(request: str, first: Task, second: Task) -> Task:
    return Task(request=request, calls=(*first.calls, *second.calls))


def _koi(pellets: int) -> Task:
    return call("", "feed_koi", pellets=pellets)


def _hedge(inches: int) -> Task:
    return call("", "trim_hedge", inches=inches)


def _tune(composer: str) -> Task:
    return call("", "whistle_tune", composer=composer)


IN_PASSING = Family(
    name="two requests, the second one in passing",
    ability=TOOLS,
    holds_out="phrasings",
    markers=("while youre at it", "on top of that", "oh and", "when thats out of the way"),
    tools=(
        tool("feed_koi", "Feed the koi with pellets", pellets=INTEGER),
        tool("trim_hedge", "Trim the hedge by some inches", inches=INTEGER),
        tool("whistle_tune", "Whistle a tune by a composer", composer=TEXT),
    ),
    tasks=(
        _both("Feed the koi 20 pellets and, while you're at it, trim the hedge by 12 inches.", _koi(20), _hedge(12)),
        _both("Trim the hedge by 30 inches, oh and feed the koi 15 pellets.", _hedge(30), _koi(15)),
        _both("Trim the hedge by 8 inches, and on top of that whistle a tune by Scarlatti.", _hedge(8), _tune("Scarlatti")),
        _both("Whistle a tune by Monteverdi. Oh, and feed the koi 25 pellets.", _tune("Monteverdi"), _koi(25)),
        _both("Feed the koi 40 pellets. When that's out of the way, whistle something by Telemann.", _koi(40), _tune("Telemann")),
        _both("Whistle a tune by Buxtehude and, while you're at it, one by Telemann.", _tune("Buxtehude"), _tune("Telemann")),
        _both("Trim the hedge by 5 inches. While you're at it, the koi get 10 pellets.", _hedge(5), _koi(10)),
        _both("Feed the koi 12 pellets, and on top of that trim the hedge by 3 inches.", _koi(12), _hedge(3)),
    ),
)  # fmt: skip

NO_TOOL = Family(
    name="no tool fits",
    ability=TOOLS,
    holds_out="phrasings",
    markers=("rhymes with", "thats brilliant", "made of metal", "limerick", "knee hurts", "night watch", "galoshes", "moons", "rubbish"),
    tools=(*TELEGRAM.tools, *REASON_FIRST.tools[:1]),
    tasks=tuple(
        Task(request=each)
        for each in (
            "What rhymes with marzipan?", "Cheers, that's brilliant!", "Are you made of metal?", "Compose a limerick about a walrus.",
            "My knee hurts, any idea why?", "Who painted the Night Watch?", "Shall I wear galoshes?", "How many moons does Jupiter have?",
            "Your last answer was rubbish.",
        )
    ),
)  # fmt: skip

FAMILIES = (
    INDIRECT, WISHED, UNITS, PEOPLE, POSSESSIVE, OPPOSITES, REASON_FIRST, CORRECTED, TELEGRAM, IN_PASSING, NO_TOOL,
)  # fmt: skip

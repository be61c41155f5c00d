"""Families of extractions whose phrasings, words or shapes no lesson has."""

from tools.models.lessons.held_out.family import EXTRACTION, Family, fields

ASKED = Family(
    name="asked for in other words",
    ability=EXTRACTION,
    holds_out="phrasings",
    markers=("fish out", "boil this down to", "i only care about", "tabulate", "sum up in terms of"),
    tasks=(
        fields("Gwendolyn lives in Ljubljana and is 34 years old.", ask="Fish out {keys} of this: {text}", name="Gwendolyn", city="Ljubljana", age=34),
        fields("Ferdinand comes from Utrecht.", ask="Boil this down to {keys}. {text}", name="Ferdinand", city="Utrecht"),
        fields("Octavia works as a beekeeper and has the age 51.", ask="I only care about {keys}: {text}", name="Octavia", job="beekeeper", age=51),
        fields("Leopold moved to Tampere.", ask="{text} Tabulate {keys} as an object.", name="Leopold", city="Tampere"),
        fields("Winifred has a walrus and lives in Bologna.", ask="{text}\nFish out {keys}.", name="Winifred", animal="walrus", city="Bologna"),
        fields("Ignatius enjoys origami.", ask="Sum up in terms of {keys}: {text}", name="Ignatius", hobby="origami"),
        fields("Philippa is 27 years old and has the phone number 555-8812.", ask="{text} I only care about {keys}.", name="Philippa", age=27, phone="555-8812"),
        fields("Cornelius was born in Bhutan.", ask="Boil this down to {keys} as JSON:\n{text}", name="Cornelius", country="Bhutan"),
    ),
)  # fmt: skip

POSSESSIVE = Family(
    name="possessive at the beginning",
    ability=EXTRACTION,
    holds_out="phrasings",
    markers=("hometown", "profession", "marguerites pet", "pastime", "birthplace", "todays forecast", "yesterdays headline", "tomorrows ferry"),
    tasks=(
        fields("Gwendolyn's hometown is Ljubljana.", name="Gwendolyn", city="Ljubljana"),
        fields("Thaddeus's profession: beekeeper. His age: 63.", name="Thaddeus", job="beekeeper", age=63),
        fields("Marguerite's pet is a walrus.", name="Marguerite", animal="walrus"),
        fields("Ferdinand's pastime is origami, and he lives in Utrecht.", name="Ferdinand", hobby="origami", city="Utrecht"),
        fields("Anneliese's birthplace is Bhutan.", name="Anneliese", country="Bhutan"),
        fields("Today's forecast for Bologna is 31 degrees.", city="Bologna", degrees=31),
        fields("Yesterday's headline was about Siobhan, aged 45.", name="Siobhan", age=45),
        fields("Tomorrow's ferry brings Oluwaseun to Tampere.", name="Oluwaseun", city="Tampere"),
    ),
)  # fmt: skip

PEOPLE = Family(
    name="two people in one sentence",
    ability=EXTRACTION,
    holds_out="phrasings",
    markers=("owes", "apprenticed to", "was taught by", "bumped into"),
    tasks=(
        fields("Gwendolyn owes Ferdinand 85 dollars.", debtor="Gwendolyn", creditor="Ferdinand", amount=85),
        fields("Octavia owes 12 euros to Leopold.", debtor="Octavia", creditor="Leopold", amount=12),
        fields("The debtor Thaddeus owes 40 to the creditor Ingeborg.", debtor="Thaddeus", creditor="Ingeborg", amount=40),
        fields("Winifred was taught by Ignatius in Bologna.", pupil="Winifred", teacher="Ignatius", city="Bologna"),
        fields("Our pupil Philippa was taught by Cornelius, the teacher.", pupil="Philippa", teacher="Cornelius"),
        fields("Matthijs was apprenticed to Bartholomew, his master.", apprentice="Matthijs", master="Bartholomew"),
        fields("Siobhan bumped into Oluwaseun in Utrecht. Siobhan is the finder.", finder="Siobhan", found="Oluwaseun", city="Utrecht"),
        fields("The apprentice Marguerite was apprenticed to the master Leopold for 3 years.", apprentice="Marguerite", master="Leopold", years=3),
    ),
)  # fmt: skip

APPOSITION = Family(
    name="a person described in an apposition",
    ability=EXTRACTION,
    holds_out="phrasings",
    markers=("year old", "a native of", "by trade", "hailing from", "originally of"),
    tasks=(
        fields("Gwendolyn, a 41-year-old beekeeper, waved.", name="Gwendolyn", age=41, job="beekeeper"),
        fields("Ferdinand, a native of Tampere, keeps a walrus.", name="Ferdinand", city="Tampere", animal="walrus"),
        fields("The 29-year-old Octavia, hailing from Ljubljana, smiled.", name="Octavia", age=29, city="Ljubljana"),
        fields("Leopold, glazier by trade, is 58.", name="Leopold", job="glazier", age=58),
        fields("Hailing from Utrecht, Winifred is a glazier by trade.", name="Winifred", city="Utrecht", job="glazier"),
        fields("Ignatius (originally of Bologna) does origami.", name="Ignatius", city="Bologna", hobby="origami"),
        fields("A 19-year-old named Philippa won.", name="Philippa", age=19),
        fields("Cornelius, a native of Bhutan and a 70-year-old, retired.", name="Cornelius", country="Bhutan", age=70),
    ),
)  # fmt: skip

CORRECTED = Family(
    name="corrected or denied in the text",
    ability=EXTRACTION,
    holds_out="phrasings",
    markers=("rather than", "as opposed to", "no longer in", "correction", "contrary to"),
    tasks=(
        fields("Gwendolyn lives in Utrecht rather than Bologna.", name="Gwendolyn", city="Utrecht"),
        fields("Ferdinand is no longer in Tampere. He moved to Ljubljana.", name="Ferdinand", city="Ljubljana"),
        fields("Octavia is 33. Correction: Octavia is 34.", name="Octavia", age=34),
        fields("Leopold is a beekeeper as opposed to a glazier.", name="Leopold", job="beekeeper"),
        fields("Rather than a walrus, Winifred has a hedgehog.", name="Winifred", animal="hedgehog"),
        fields("Contrary to the list, Ignatius has the phone number 555-1290.", name="Ignatius", phone="555-1290"),
        fields("The price of the trombone is 80. Correction: it is 95.", product="trombone", price=95),
        fields("Philippa enjoys origami rather than macrame.", name="Philippa", hobby="origami"),
    ),
)  # fmt: skip

MEASURED = Family(
    name="numbers with units",
    ability=EXTRACTION,
    holds_out="phrasings",
    markers=("weighs in at", "metres tall", "clocks in at", "holds a good", "lasts all of", "27m high"),
    tasks=(
        fields("The trombone weighs in at 4 kg.", product="trombone", weight=4),
        fields("The lighthouse stands 52 metres tall.", building="lighthouse", height=52),
        fields("Our harpsichord weighs in at 38 kilos and costs 900 euros.", product="harpsichord", weight=38, price=900),
        fields("The samovar holds a good 12 litres.", product="samovar", volume=12),
        fields("The gazelle clocks in at 80 km/h.", animal="gazelle", speed=80),
        fields("The film Heliotrope lasts all of 140 minutes.", title="Heliotrope", minutes=140),
        fields("A cardigan weighs in at 600g and costs $75.", product="cardigan", weight=600, price=75),
        fields("The windmill stands 27m high.", building="windmill", height=27),
    ),
)  # fmt: skip

LETTER = Family(
    name="a letter with a greeting and a signature",
    ability=EXTRACTION,
    holds_out="phrasings",
    markers=("warm regards", "yours sincerely", "dear sirs", "cheerio", "p s i am"),
    tasks=(
        fields("Dear Sirs,\n\nI live in Utrecht and am 44 years old.\n\nYours sincerely\nGwendolyn", name="Gwendolyn", city="Utrecht", age=44),
        fields("Hello all,\nplease call me at 555-6631.\nWarm regards\nFerdinand", name="Ferdinand", phone="555-6631"),
        fields("I have moved to Tampere!\n\nCheerio, Octavia", name="Octavia", city="Tampere"),
        fields("Dear Sirs,\nI would like 6 samovar at 45 each.\nYours sincerely, Leopold", product="samovar", quantity=6, price=45),
        fields("My new job: glazier.\n\nWarm regards, Winifred", name="Winifred", job="glazier"),
        fields("Greetings from Bologna.\nIgnatius\n\nP.S. I am 61 now.", name="Ignatius", city="Bologna", age=61),
        fields("We meet in the lighthouse at 09:15.\nCheerio\nPhilippa", name="Philippa", place="lighthouse", time="09:15"),
    ),
)  # fmt: skip

RECORD = Family(
    name="a line of a log or of a table",
    ability=EXTRACTION,
    holds_out="phrasings",
    markers=("warn disk", "warn queue", "debug 10", "uid name", "get samovar", "items item"),
    tasks=(
        fields("WARN disk=turbine1 used=93 host=windmill", host="windmill", used=93),
        fields("DEBUG 10:42 login ok uid=gwendolyn77 from Utrecht", uid="gwendolyn77", city="Utrecht", time="10:42"),
        fields("| uid | name | age |\n| 7 | Ferdinand | 39 |", name="Ferdinand", age=39),
        fields("uid;name;city\n12;Octavia;Tampere", name="Octavia", city="Tampere"),
        fields("GET /samovar HTTP/1.1 status=404 ms=12", path="/samovar", status=404),
        fields("tot 3 items; item=trombone price=210 qty=3", item="trombone", price=210),
        fields("WARN queue=lighthouse size=1400 limit=1200", queue="lighthouse", size=1400, limit=1200),
    ),
)  # fmt: skip

REPORTED = Family(
    name="reported speech",
    ability=EXTRACTION,
    holds_out="phrasings",
    markers=("rumour has it", "word is that", "i gather", "swears that", "legend says"),
    tasks=(
        fields("Rumour has it that Gwendolyn lives in Tampere.", name="Gwendolyn", city="Tampere"),
        fields("Word is that Ferdinand works as a glazier.", name="Ferdinand", job="glazier"),
        fields("I gather Octavia is 38 years old and has a hedgehog.", name="Octavia", age=38, animal="hedgehog"),
        fields("Everybody swears that Leopold was born in Bhutan.", name="Leopold", country="Bhutan"),
        fields("Legend says Winifred comes from Ljubljana.", name="Winifred", city="Ljubljana"),
        fields("Word is that the trombone costs 310 euros.", product="trombone", price=310),
        fields("I gather that Ignatius enjoys macrame in Utrecht.", name="Ignatius", hobby="macrame", city="Utrecht"),
    ),
)  # fmt: skip

NESTED = Family(
    name="an object in the answer",
    ability=EXTRACTION,
    holds_out="schemas",
    shapes=("object in an object",),
    tasks=(
        fields("Gwendolyn lives in Utrecht.", ask="Extract person, an object with name and city: {text}", person={"name": "Gwendolyn", "city": "Utrecht"}),
        fields("Ferdinand is 39 and comes from Tampere.", ask="Extract person, an object with name, age and city: {text}", person={"name": "Ferdinand", "age": 39, "city": "Tampere"}),
        fields("Order: 2 x samovar, 45 USD.", ask="Extract order, an object with product, quantity and price: {text}", order={"product": "samovar", "quantity": 2, "price": 45}),
        fields("Octavia has a walrus.", ask="Extract owner, an object with name, and animal: {text}", owner={"name": "Octavia"}, animal="walrus"),
        fields("Leopold works as a glazier in Bologna.", ask="Extract name, and work, an object with job and city: {text}", name="Leopold", work={"job": "glazier", "city": "Bologna"}),
        fields("Winifred comes to the lighthouse at 14:20.", ask="Extract name, and meeting, an object with place and time: {text}", name="Winifred", meeting={"place": "lighthouse", "time": "14:20"}),
        fields("Ignatius can be called at 555-7070.", ask="Extract name, and contact, an object with phone: {text}", name="Ignatius", contact={"phone": "555-7070"}),
    ),
)  # fmt: skip

LISTS = Family(
    name="a list in the answer",
    ability=EXTRACTION,
    holds_out="schemas",
    shapes=("list",),
    tasks=(
        fields("Gwendolyn, Ferdinand and Octavia are here.", ask="Extract names, a list: {text}", names=["Gwendolyn", "Ferdinand", "Octavia"]),
        fields("Leopold enjoys origami and macrame.", ask="Extract name, and hobbies, a list: {text}", name="Leopold", hobbies=["origami", "macrame"]),
        fields("Winifred has a walrus and a hedgehog.", ask="Extract name, and animals, a list: {text}", name="Winifred", animals=["walrus", "hedgehog"]),
        fields("We visited Utrecht, Tampere and Bologna.", ask="Extract cities, a list: {text}", cities=["Utrecht", "Tampere", "Bologna"]),
        fields("The samovar costs 45 or 60 euros.", ask="Extract product, and prices, a list: {text}", product="samovar", prices=[45, 60]),
        fields("Ignatius won in 1998, 2004 and 2011.", ask="Extract name, and years, a list: {text}", name="Ignatius", years=[1998, 2004, 2011]),
        fields("In stock: trombone, harpsichord.", ask="Extract products, a list: {text}", products=["trombone", "harpsichord"]),
    ),
)  # fmt: skip

MISSING = Family(
    name="null for what the text doesn't say",
    ability=EXTRACTION,
    holds_out="schemas",
    shapes=("null",),
    nullable=True,
    tasks=tuple(
        fields(text, ask="Extract {keys}, null for what is missing: {text}", **wanted)
        for text, wanted in (
            ("Gwendolyn lives in Utrecht.", {"name": "Gwendolyn", "city": "Utrecht", "age": None}),
            ("Ferdinand is 39 years old.", {"name": "Ferdinand", "age": 39, "phone": None}),
            ("Octavia works as a glazier.", {"name": "Octavia", "job": "glazier", "city": None}),
            ("Somebody of 52 years lives in Tampere.", {"name": None, "age": 52, "city": "Tampere"}),
            ("The samovar costs 45 euros.", {"product": "samovar", "price": 45, "quantity": None}),
            ("Winifred has a hedgehog.", {"name": "Winifred", "animal": "hedgehog", "color": None}),
            ("Ignatius was born in Bhutan.", {"name": "Ignatius", "country": "Bhutan", "email": None}),
        )
    ),
)  # fmt: skip

TRUTHS = Family(
    name="truth values in the answer",
    ability=EXTRACTION,
    holds_out="schemas",
    shapes=("truth value",),
    tasks=(
        fields("Gwendolyn is married.", ask="Extract name, and married, true or false: {text}", name="Gwendolyn", married=True),
        fields("Ferdinand is not married.", ask="Extract name, and married, true or false: {text}", name="Ferdinand", married=False),
        fields("The samovar is in stock and costs 45.", ask="Extract product, price, and in_stock, true or false: {text}", product="samovar", price=45, in_stock=True),
        fields("The trombone is sold out.", ask="Extract product, and sold_out, true or false: {text}", product="trombone", sold_out=True),
        fields("Octavia, 29, has no driving licence.", ask="Extract name, age, and licence, true or false: {text}", name="Octavia", age=29, licence=False),
        fields("Leopold smokes.", ask="Extract name, and smoker, true or false: {text}", name="Leopold", smoker=True),
        fields("The lighthouse in Bologna is closed.", ask="Extract city, and open, true or false: {text}", city="Bologna", open=False),
    ),
)  # fmt: skip

LETTERS = Family(
    name="words with letters that English lacks",
    ability=EXTRACTION,
    holds_out="words",
    tasks=(
        fields("Björn lives in Malmö.", name="Björn", city="Malmö"),
        fields("Žofia is 44 years old and comes from Łódź.", name="Žofia", age=44, city="Łódź"),
        fields("Søren works in Besançon.", name="Søren", city="Besançon"),
        fields("Çelebi moved to Kołobrzeg.", name="Çelebi", city="Kołobrzeg"),
        fields("François has the phone number 555-3344.", name="François", phone="555-3344"),
        fields("Order: 4 x jalapeño, 9 USD.", product="jalapeño", quantity=4, price=9),
        fields("Zoé comes on 2031-05-17 at 08:30 to the café.", name="Zoé", date="2031-05-17", time="08:30", place="café"),
    ),
)  # fmt: skip

UNKNOWN = Family(
    name="other words in plain texts",
    ability=EXTRACTION,
    holds_out="words",
    tasks=(
        fields("Gwendolyn lives in Utrecht and has a walrus.", name="Gwendolyn", city="Utrecht", animal="walrus"),
        fields("Ferdinand works as a glazier.", name="Ferdinand", job="glazier"),
        fields("Octavia was born in Bhutan and enjoys macrame.", name="Octavia", country="Bhutan", hobby="macrame"),
        fields("The harpsichord costs 780 euros and there are 5 of it.", product="harpsichord", price=780, quantity=5),
        fields("Leopold comes on 2033-02-11 at 16:45 to the lighthouse.", name="Leopold", date="2033-02-11", time="16:45", place="lighthouse"),
        fields("Winifred is 66 years old and comes from Tampere.", name="Winifred", age=66, city="Tampere"),
        fields("Order: 12 x cardigan, 58 USD.", product="cardigan", quantity=12, price=58),
        fields("The yarn is mohair and the motif is dragonfly.", yarn="mohair", motif="dragonfly"),
    ),
)  # fmt: skip

FAMILIES: tuple[Family, ...] = (
    ASKED, POSSESSIVE, PEOPLE, APPOSITION, CORRECTED, MEASURED, LETTER, RECORD, REPORTED, NESTED, LISTS, MISSING, TRUTHS, LETTERS, UNKNOWN,
)  # fmt: skip

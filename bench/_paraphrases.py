"""Facts, and questions that ask for them in other words: where only the meaning is common.

LoCoMo's questions repeat the words of their answers, and so reward those who look for words. These
do not, so that weights cannot be chosen for words alone. They are ours, and few: a check, no test.
"""

from __future__ import annotations

#: A fact, and what is asked. No pair has a word in common, but for those that every text has.
PAIRS = (
    ("Ada prefers e-mail", "how should we contact this customer?"),
    ("The API allows 100 calls a minute", "what is the rate limit of their service?"),
    ("Invoices go out on Fridays", "when are bills sent?"),
    ("Bob is allergic to peanuts", "which food must our guest avoid?"),
    ("The database password rotates every month", "how often do credentials change?"),
    ("Deploys are frozen over Christmas", "may we release in the holiday season?"),
    ("Her daughter plays the violin", "what instrument does the child practise?"),
    ("The warehouse in Rotterdam burned down", "was there a fire at a storage site?"),
    ("Refunds above 500 euros need a manager", "who approves large reimbursements?"),
    ("He drives an old Volvo", "what kind of car has this man got?"),
    ("The server room overheats in summer", "why do machines fail when it is hot outside?"),
    ("Carol quit her job in March", "did anybody resign this spring?"),
    ("The printer on the third floor is broken", "which office equipment is out of order?"),
    ("Our lawyer is Mr Okafor", "who gives us legal advice?"),
    ("They moved to Lisbon last year", "in which Portuguese city does the family live now?"),
    ("The backup takes six hours", "how long until a copy of all data is done?"),
    ("Dan adopted two kittens", "does our colleague have pets?"),
    ("The contract ends in December", "until which month is the agreement valid?"),
    ("Use the staging cluster for load tests", "where can I try heavy traffic safely?"),
    ("The client pays in Swiss francs", "what currency is used by this buyer?"),
    ("Eve runs a marathon each autumn", "which sport is she keen on?"),
    ("The old login page crashes on Safari", "in what browser is sign-in faulty?"),
    ("Meetings start at nine sharp", "at what time does the team gather?"),
    ("Frank's mother is in hospital", "is a relative of his ill?"),
    ("The shop is closed on Mondays", "which day can nobody buy anything?"),
    ("Grace speaks fluent Japanese", "who could translate for visitors from Tokyo?"),
    ("The parcel was lost by the courier", "why did the delivery never arrive?"),
    ("Heating is cut off at midnight", "when does the building get cold?"),
    ("Ivan wants to become a doctor", "what career does the young man dream of?"),
    ("The report must not exceed two pages", "how short should the summary be?"),
    ("Judy bought a house by the lake", "who owns property near water?"),
    ("The vendor raised prices by ten percent", "did supplies get more expensive?"),
    ("Ken broke his leg skiing", "what injury happened on the slopes?"),
    ("Logs are deleted after thirty days", "for what period are traces kept?"),
    ("Lena bakes bread every Sunday", "what does she make in the kitchen at weekends?"),
    ("The scanner misreads handwritten digits", "which numbers are recognised wrongly?"),
    ("Mike is married to Nina", "who is his wife?"),
    ("The tunnel is shut for repairs", "why is the road blocked?"),
    ("Olga teaches chemistry at a school", "what is her profession?"),
    ("Payments fail when the card has expired", "why was a purchase declined?"),
)

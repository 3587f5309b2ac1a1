"""The nine robots of seed 003: their error protocols as data (config/policies), brought to life.

policies.py     RobotPolicy, and the strict loader of the files
form.py         how a table of such a file is read: which keys, what is allowed, what is wrong
repeats.py      the tables [retry] and [item_retry]
sections.py     the other tables, as typed values
follow_ups.py   what follows on a failure, as data
recovery.py     what leads out of an error: the robots' own steps, and the protocol for all of them
robot.py        Robot: does a piece of work under its protocol
course.py       one piece of work from beginning to end: the records, and what is handed to the desk
deferred.py     work that is to be done again later, kept until it is due
chain.py        robots that work one after another, until one fails fast
protocol.py     what a policy comes to for creation and batches
desk.py         Desk: takes in what is to follow
grid.py         the validation of robot 7
"""

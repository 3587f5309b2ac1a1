"""What paid calls come to, whoever makes them.

day_book.py   what a day has cost and what is set aside: values in, values out
caps.py       the book of the day in the bucket, for every channel and machine: reserve before a call, settle after it
"""

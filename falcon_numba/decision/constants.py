"""What a real machine adds to the roofline model, and the sizes that it shares with the engine, all in one place.

The factors were fitted to the engine's phase clock (`bench/profile_product.py`) on a 2-core Zen 4: 24 shapes from
400³ to 4096³, skinny ones among them, nine schemes, float32 and float64, one and two threads.
"""

NOT_HIDDEN = 1.0  # of the shorter of computing and moving: packing and streaming are not overlapped (0: they are)

# Rates of a stage over those that are measured for the machine.
ADD_A, ADD_B = 1.09, 1.03  # combining, over additions in L1
PACK_A, PACK_B = 0.73, 1.1  # moving while packing, over copying
READ_B = 1.8  # time to read B for packing, over writing as much
STREAMED = 6.0  # packed operands that the micro-kernel reads, over reading memory: prefetched, and part is in L3
NEAR = 0.74  # moving what is in L3 already, for any of the above, over L3: data come from the L2 of others as well
UNPREFETCHED = 0.65  # packed B from memory that nobody prefetched, over L3: a core has so many lines outstanding
INNER, OUTER = 1.0, 1.0  # adding to the sums, over L2 and L3
UPDATE = 0.55  # of C, over copying: short rows, far apart
DIRECT = 0.1  # of the time of updating C that is left where the micro-kernel stores to C
GUARD = 0.68
SHARED_KERNEL = 1.04  # more time of the micro-kernel where several threads share caches and memory
L3_SHARE = 0.5  # of L3 that one product's data may count on

NUMPY_PACK_A, NUMPY_PACK_B = 1.2, 0.85  # NumPy's packing over ours: bytes of A; elements of B, over float32's
NUMPY_WIDE, NUMPY_WIDER = 4096, 0.25  # columns of a float32 B from which each doubling takes so much more of that
NUMPY_BATCH = 0.5  # of the time to read a batch's operands and result that NumPy doesn't hide
NUMPY_THIN = 8  # rows or columns of C below which packing never pays
THIN, THIN_MUST_GAIN = 64, 1.05  # rows or columns below which predictions are less certain: the engine must win by far
NUMPY_OUTER = 1.2e-9  # seconds that NumPy takes for an element of an outer product, in either dtype

BARRIER = 15e-6  # seconds until all threads have met, and found out
IDLE, LAST_PIECE = 0.012, 12.0  # of the micro-kernel's time, and tiles, that a thread waits for others, of very many
LEVEL_MUST_GAIN = 1.01  # a deeper plan must be faster by this factor: equal times are no reason for larger errors

# Sizes by which the engine chooses its blocks (`cpu/blocking.py` has the rules), and what the model makes of others.
ROWS_STEP = 4  # tiles of so many rows more or less have code of their own, for the edges
MOST_TOGETHER = 2  # levels: with more, combinations have too many terms, and their sums are too large for L3
A_SHARE = 64 * 2**20  # bytes of all packed A_r for one thread, at most
PIECES = 4  # of MC rows of A for every one of several threads, between two barriers
MOST_N2 = 512
HIGH = 96  # rows of packed A that must fit, for the products of more levels to be computed together
WIDEST = (4096, 2048, 1024)  # NC at depth 0, 1 and more
CHUNKS_TIMES_RANK = 8  # chunks of K that targets collect before C is touched, times the rank
SHARED_A, SHARED_B = 64e6, 410e6  # bytes of packed A and B of one pass
A_BYTES = 480e3  # of one packed A_r in L2

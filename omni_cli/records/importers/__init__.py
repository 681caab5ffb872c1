"""Results of other benchmark tools as records: as many samples as their files have, and sentences on what they lack."""

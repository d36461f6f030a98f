package oracle

import "os"

// vectors tells whether loops run in vector registers. See the one for amd64; every arm64 has NEON.
var vectors = os.Getenv("LLMRUN_CPU") != "generic"

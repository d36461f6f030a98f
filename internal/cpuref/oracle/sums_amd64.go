package oracle

import (
	"os"

	"golang.org/x/sys/cpu"
)

// vectors tells whether loops run in vector registers. LLMRUN_CPU, which names the kernels of the reference, may ask for the plain ones.
var vectors = cpu.X86.HasAVX2 && cpu.X86.HasF16C && os.Getenv("LLMRUN_CPU") != "generic"

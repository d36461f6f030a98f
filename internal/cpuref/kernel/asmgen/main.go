// Command asmgen writes the assembly of package kernel and its declarations in Go:
//
//	go run . amd64|avx512|arm64 OUT.s STUBS.go
//
// For amd64, and for what AVX-512 adds to it, it speaks through avo, which knows the instructions and hands out registers. For arm64 it writes lines itself, and encodes
// the instructions that Go's assembler lacks.
package main

import (
	"fmt"
	"os"
)

// elem is an element type of the weights.
type elem struct {
	name string
	size int // bytes
}

var types = []elem{{"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I8", 1}}

// Bits of the argument mode: see the package's constants of the same names.
const (
	modeContinue = 1
	modeLeave    = 2
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: asmgen amd64|avx512|arm64 OUT.s STUBS.go")
		os.Exit(2)
	}
	arch, out, stubs := os.Args[1], os.Args[2], os.Args[3]
	switch arch {
	case "amd64", "avx512":
		os.Args = []string{os.Args[0], "-out", out, "-stubs", stubs, "-pkg", "kernel"} // avo reads them
		map[string]func(){"amd64": amd64, "avx512": avx512}[arch]()
	case "arm64":
		arm64(out, stubs)
	}
}

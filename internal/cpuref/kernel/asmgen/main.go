// Command asmgen writes the assembly of packages kernel and oracle, and its declarations in Go:
//
//	go run . amd64|avx512|arm64|oracle-amd64|oracle-arm64 OUT.s STUBS.go
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
		fmt.Fprintln(os.Stderr, "usage: asmgen amd64|avx512|arm64|oracle-amd64|oracle-arm64 OUT.s STUBS.go")
		os.Exit(2)
	}
	arch, out, stubs := os.Args[1], os.Args[2], os.Args[3]
	switch arch {
	case "amd64":
		avo("kernel", out, stubs, amd64)
	case "avx512":
		avo("kernel", out, stubs, avx512)
	case "arm64":
		lines("kernel", out, stubs, arm64)
	case "oracle-amd64":
		avo("oracle", out, stubs, oracleAMD64)
	case "oracle-arm64":
		lines("oracle", out, stubs, oracleARM64)
	}
}

// avo lets write write the assembly of a package through the library, which reads its arguments.
func avo(pkg, out, stubs string, write func()) {
	os.Args = []string{os.Args[0], "-out", out, "-stubs", stubs, "-pkg", pkg}
	write()
}

package main

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/cpu"

	"llmrun/internal/cpuref/kernel"
)

// lookAtCPU says what the CPU reference has to work with, and adds what is known to go wrong.
func lookAtCPU(warnings []string) (cpuFacts, []string) {
	c := cpuFacts{Model: cpuModel(), Cores: runtime.NumCPU(), GOMAXPROCS: runtime.GOMAXPROCS(0), Threads: runtime.NumCPU(), Features: features()}
	for _, s := range kernel.Sets() {
		c.Available = append(c.Available, s.Name)
	}
	if s, err := kernel.Choose(os.Getenv("LLMRUN_CPU")); err != nil {
		warnings = append(warnings, "LLMRUN_CPU: "+err.Error())
	} else {
		c.Kernels = s.Name
	}
	if c.Kernels == "generic" {
		warnings = append(warnings, "the CPU reference runs plain Go, which is slow")
	}
	if c.GOMAXPROCS < c.Cores {
		warnings = append(warnings, fmt.Sprintf("GOMAXPROCS is %d, and there are %d cores", c.GOMAXPROCS, c.Cores))
	}
	if translated() {
		warnings = append(warnings, "this program is built for Intel and runs under Rosetta, which shows it no Metal device to be trusted: use the darwin/arm64 build")
	}
	return c, warnings
}

// features are those that the kernels ask for, and those that a faster one might.
func features() []string {
	list := []string{}
	for _, f := range []struct {
		name string
		has  bool
	}{
		{"avx2", cpu.X86.HasAVX2}, {"fma", cpu.X86.HasFMA}, {"f16c", cpu.X86.HasF16C}, {"avx512f", cpu.X86.HasAVX512F}, {"avx512vnni", cpu.X86.HasAVX512VNNI},
		{"neon", cpu.ARM64.HasASIMD}, {"fphp", cpu.ARM64.HasFPHP}, {"dotprod", cpu.ARM64.HasASIMDDP},
	} {
		if f.has {
			list = append(list, f.name)
		}
	}
	return list
}

// Package shaders holds the Metal source of every kernel, one file for each op. Each file stands alone.
//
// In all of them: T is the type of activations, W that of a matrix; a kernel takes its output first, then inputs, then weights, then its
// args; sums are float; fused multiply-adds are spelled out, and the compiler makes no others (fp contract), so that every one rounds
// alike; what may fail in a fast variant is spelled precise. Compilers before macOS 15 may not know the pragma math_mode, and skip it.
package shaders

import "embed"

// FS holds the *.metal files.
//
//go:embed *.metal
var FS embed.FS

//go:build !darwin

package metal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/ebitengine/purego"

	"llmrun/internal/metal/hostmetal"
)

// openLibraries loads hostmetal's library, which the machine's C++ compiler builds at first use.
func openLibraries() (source, error) {
	info, err := hostmetal.Library()
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		return source{}, &UnavailableError{err, h.Hint()}
	} else if err != nil {
		return source{}, err
	}
	handle, err := purego.Dlopen(info.Path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return source{}, fmt.Errorf("metal: load %s: %w", info.Path, err)
	}
	if err := hostmetal.Attach(handle); err != nil {
		return source{}, err
	}
	return source{handles: []uintptr{handle}, host: true, compiler: info.Compiler, cache: filepath.Dir(info.Path)}, nil
}

// validate turns hostmetal's checked mode on for what is compiled and allocated from now on, if LLMRUN_METAL_VALIDATE=1. LLMRUN_METAL_SEED,
// 0 unless set, decides the order in which it runs threads, simdgroups and threadgroups.
func validate(s source) (on bool, err error) {
	on = Validates()
	seed := uint64(0)
	if v := os.Getenv(seedVariable); v != "" {
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			return false, fmt.Errorf("metal: %s: want a number, got %q", seedVariable, v)
		}
	}
	return on, hostmetal.Validate(s.handles[0], on, seed)
}

// systemVersion is that of the system whose Metal the host device has.
func systemVersion() (version string, major int) { return "14.0", 14 }

// openMPS has nothing to load: hostmetal's library has MetalPerformanceShaders in it.
func openMPS(s source) (source, error) { return s, nil }

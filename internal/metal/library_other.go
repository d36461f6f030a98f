//go:build !darwin

package metal

import (
	"errors"
	"fmt"
	"path/filepath"

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

// systemVersion is that of the system whose Metal the host device has.
func systemVersion() (version string, major int) { return "14.0", 14 }

// openMPS has nothing to load: hostmetal's library has MetalPerformanceShaders in it.
func openMPS(s source) (source, error) { return s, nil }

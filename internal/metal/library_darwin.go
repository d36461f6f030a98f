package metal

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/ebitengine/purego"
)

// openLibraries loads Apple's frameworks. Without CoreGraphics a command-line program is given no device.
func openLibraries() (source, error) {
	if runtime.GOARCH != "arm64" {
		return source{}, &UnavailableError{errors.New("metal: want Apple silicon, this program is built for " + runtime.GOARCH),
			"use the darwin/arm64 build; Rosetta's GPU view is not trusted"}
	}
	var s source
	for _, path := range []string{
		"/System/Library/Frameworks/Foundation.framework/Foundation",
		"/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics",
		"/System/Library/Frameworks/Metal.framework/Metal",
		"/usr/lib/libobjc.A.dylib",
	} {
		h, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err != nil {
			return s, fmt.Errorf("metal: load %s: %w", path, err)
		}
		s.handles = append(s.handles, h)
	}
	return s, nil
}

// openMPS loads MetalPerformanceShaders, too.
func openMPS(s source) (source, error) {
	const path = "/System/Library/Frameworks/MetalPerformanceShaders.framework/MetalPerformanceShaders"
	h, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return s, fmt.Errorf("metal: load %s: %w", path, err)
	}
	s.handles = append(s.handles, h)
	return s, nil
}

package hostmetal

import (
	"debug/dwarf"
	"debug/elf"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
	"unsafe"
)

// placesRequest mirrors PlacesRequest in device.cpp.
type placesRequest struct {
	text       *byte
	bytes      uint64
	out        *byte
	room, used uint64
}

// servePlaces names the places in the text of an error.
func servePlaces(r *placesRequest) uintptr {
	r.used = uint64(copy(unsafe.Slice(r.out, r.room), namePlaces(string(unsafe.Slice(r.text, r.bytes)))))
	return 0
}

var placeMark = regexp.MustCompile("\x1f([0-9a-f]+) ([^\x1f]*)\x1f")

// namePlaces replaces each place, an address in a library and the library's path, by the source's file and line; in the file of the
// first one by the line alone.
func namePlaces(text string) string {
	first := ""
	return placeMark.ReplaceAllStringFunc(text, func(mark string) string {
		m := placeMark.FindStringSubmatch(mark)
		address, _ := strconv.ParseUint(m[1], 16, 64)
		file, line, err := sourceLine(m[2], address)
		switch {
		case err != nil:
			return "an unknown line"
		case first == "":
			first = file
		case file == first:
			return fmt.Sprint("line ", line)
		}
		return fmt.Sprint(file, ":", line)
	})
}

// sourceLine finds the line of the Metal source that an address in a library belongs to. Where the prelude's functions were inlined, it is
// the line that calls them.
func sourceLine(library string, address uint64) (file string, line int, err error) {
	f, err := elf.Open(library)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	d, err := f.DWARF()
	if err != nil {
		return "", 0, err
	}
	r := d.Reader()
	unit, err := r.SeekPC(address)
	if err != nil {
		return "", 0, err
	}
	lines, err := d.LineReader(unit)
	if err != nil {
		return "", 0, err
	}
	var at dwarf.LineEntry
	if err := lines.SeekPC(address, &at); err != nil {
		return "", 0, err
	}
	file, line = at.File.Name, at.Line
	calls, err := inlinedCalls(d, r, address)
	if err != nil {
		return "", 0, err
	}
	for i := len(calls) - 1; i >= 0 && isPrelude(file); i-- {
		file, line = lines.Files()[calls[i].file].Name, calls[i].line
	}
	return path.Base(file), line, nil
}

func isPrelude(file string) bool {
	return strings.Contains(file, "native/prelude/") || strings.Contains(file, "<kernels>")
}

type inlinedCall struct{ file, line int }

// inlinedCalls lists where functions were inlined around an address, the outermost first. The reader stands in the address's unit.
func inlinedCalls(d *dwarf.Data, r *dwarf.Reader, address uint64) (calls []inlinedCall, err error) {
	for {
		e, err := r.Next()
		if err != nil {
			return nil, err
		}
		if e == nil || e.Tag == dwarf.TagCompileUnit {
			return calls, nil
		}
		ranges, err := d.Ranges(e)
		if err != nil {
			return nil, err
		}
		inside := len(ranges) == 0 && e.Tag != dwarf.TagSubprogram && e.Tag != dwarf.TagInlinedSubroutine
		for _, x := range ranges {
			inside = inside || address >= x[0] && address < x[1]
		}
		if e.Tag == dwarf.TagInlinedSubroutine && inside {
			file, _ := e.Val(dwarf.AttrCallFile).(int64)
			line, _ := e.Val(dwarf.AttrCallLine).(int64)
			calls = append(calls, inlinedCall{int(file), int(line)})
		}
		if e.Children && !inside {
			r.SkipChildren()
		}
	}
}

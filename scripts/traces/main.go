// Command traces compares two traces (--trace ops) of the same command on two machines, site by site, and names the first one beyond the
// tolerance.
//
//	go run ./scripts/traces testdata/traces/tiny-gemma2.jsonl.gz mac.jsonl
//
// The rows of the CPU reference must be the same to the last bit: that is what it promises on every machine. Those of the candidate
// may stray. Exit code: 0 they agree, 1 they differ, 2 they could not be compared.
package main

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"llmrun/internal/engine"
)

// defaultTolerance is ten times what the host device and the CPU reference, which sum in different orders, are apart on the embedded
// models in float32: 9.5e-7, after eight layers.
const defaultTolerance = 1e-5

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("traces", flag.ContinueOnError)
	flags.SetOutput(stderr)
	tolerance := flags.Float64("tolerance", defaultTolerance, "how far an element of a candidate's row may stray, relative to the largest one of its row")
	if err := flags.Parse(args); err != nil || flags.NArg() != 2 {
		fmt.Fprintln(stderr, "usage: traces [-tolerance T] TRACE TRACE")
		return 2
	}
	var traces [2][]engine.TraceLine
	for i, file := range flags.Args() {
		var err error
		if traces[i], err = readFile(file); err != nil {
			fmt.Fprintf(stderr, "traces: %v\n", err)
			return 2
		}
	}
	f := compare(traces[0], traces[1], *tolerance)
	fmt.Fprintln(stdout, f)
	if f.first != "" {
		return 1
	}
	return 0
}

// readFile reads a trace, which may be compressed.
func readFile(file string) ([]engine.TraceLine, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader = bufio.NewReader(f)
	if strings.HasSuffix(file, ".gz") {
		if r, err = gzip.NewReader(r); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	var lines []engine.TraceLine
	for d := json.NewDecoder(r); ; {
		var l engine.TraceLine
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", file, len(lines)+1, err)
		}
		lines = append(lines, l)
	}
	if len(lines) == 0 {
		return nil, fmt.Errorf("%s: no lines", file)
	}
	return lines, nil
}

// finding is what a comparison has found.
type finding struct {
	lines, same int     // lines compared; of them equal to the last bit
	worst       float64 // the most that a line strays, relative to its tensor's largest element
	at          string  // the line that does
	first       string  // the first difference beyond the tolerance; "": none
}

func (f finding) String() string {
	s := fmt.Sprintf("%d lines, %d the same to the last bit, the others stray %.2g of their largest element at most", f.lines, f.same, f.worst)
	if f.at != "" {
		s += " (" + f.at + ")"
	}
	if f.first != "" {
		s += "\nfirst difference: " + f.first
	}
	return s
}

// compare holds b to a, line by line.
func compare(a, b []engine.TraceLine, tolerance float64) finding {
	f := finding{}
	differ := func(format string, values ...any) {
		if f.first == "" {
			f.first = fmt.Sprintf(format, values...)
		}
	}
	for i, x := range a {
		if i == len(b) {
			differ("the second trace ends before %s", name(x))
			break
		}
		y := b[i]
		f.lines++
		if x == y {
			f.same++
			continue
		}
		if name(x) != name(y) || x.Rows != y.Rows || x.Cols != y.Cols || x.Pos != y.Pos {
			differ("line %d: %s [%d %d] beside %s [%d %d]", i+1, name(x), x.Rows, x.Cols, name(y), y.Rows, y.Cols)
			break
		}
		if strays := strays(x, y); !(strays <= f.worst) {
			f.worst, f.at = strays, name(x)
		}
		switch {
		case x.NaN != y.NaN || x.Inf != y.Inf || x.FirstBad != y.FirstBad:
			differ("%s: %d NaN and %d infinite, the first at %d; beside %d and %d, at %d", name(x), x.NaN, x.Inf, x.FirstBad, y.NaN, y.Inf, y.FirstBad)
		case x.Side == "reference":
			differ("%s: sum %v, largest %v, mean square %v; beside %v, %v, %v: the reference must be the same to the last bit",
				name(x), x.Sum, x.MaxAbs, x.MeanSquare, y.Sum, y.MaxAbs, y.MeanSquare)
		case !(strays(x, y) <= tolerance):
			differ("%s: sum %v, largest %v, mean square %v; beside %v, %v, %v: %.2g of the largest, beyond %.2g",
				name(x), x.Sum, x.MaxAbs, x.MeanSquare, y.Sum, y.MaxAbs, y.MeanSquare, strays(x, y), tolerance)
		}
	}
	if len(b) > len(a) {
		differ("the first trace ends before %s", name(b[len(a)]))
	}
	return f
}

func name(l engine.TraceLine) string {
	return fmt.Sprintf("%s, prompt %s, %v %s", l.Side, l.Prompt, engine.Site{Step: l.Step, Layer: l.Layer, Name: l.Site}, l.Operand)
}

// strays is the least e for which elements that are e·m apart, m the largest, explain the difference: n of them move the sum by n·e·m, one the
// maximum by e·m, all the mean square by 2·e·m·mean|x| ≤ 2·e·m·rms, to first order.
func strays(x, y engine.TraceLine) float64 {
	m, n := max(x.MaxAbs, y.MaxAbs), float64(x.Rows*x.Cols)
	if m == 0 {
		return 0
	}
	rms := math.Sqrt(max(x.MeanSquare, y.MeanSquare))
	return max(math.Abs(x.Sum-y.Sum)/n, math.Abs(x.MaxAbs-y.MaxAbs), math.Abs(x.MeanSquare-y.MeanSquare)/(2*rms)) / m
}

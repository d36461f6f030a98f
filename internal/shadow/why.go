package shadow

import (
	"bytes"
	"fmt"
	"math"
	"strings"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// why says what the numbers prove, the strongest first.
func (v *verdict) why() ([]string, error) {
	in, err := read(v.op)
	if err != nil {
		return nil, err
	}
	lines := v.beyondRange(in)
	for _, line := range []string{v.unwritten(), v.stale(), v.misplaced(in)} {
		if line != "" {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		lines = v.explained(in)
	}
	if len(lines) == 0 {
		lines = append(lines, v.factor()...)
	}
	if len(lines) == 0 {
		lines = append(lines, v.rounded(in)...)
	}
	if at := shape(v.Operand.Rows, v.cols(), v.Bad, v.bad); at != "" && (v.Bad < v.Elements || len(lines) == 0) {
		lines = append(lines, "beyond the bound: "+at+v.positions())
	}
	if lines == nil {
		lines = []string{}
	}
	return lines, nil
}

// explained names the variants that every bad element is right under.
func (v *verdict) explained(in reader) []string {
	var fit []string
	everywhere := true
	for _, candidate := range v.variants(in) {
		if ok, all := v.fits(candidate); ok {
			fit = append(fit, candidate.what)
			everywhere = everywhere && all
		}
	}
	switch {
	case len(fit) == 0:
		return nil
	case len(fit) > 3: // it proves nothing
		return nil
	case everywhere:
		return []string{strings.Join(fit, ", or ") + ": every element is what that gives"}
	}
	return []string{strings.Join(fit, ", or ") + ": every wrong element is what that gives"}
}

// fits tells whether a variant gives all bad elements, and whether it gives all others too. Where it says nothing, nothing is proved.
func (v *verdict) fits(candidate variant) (ok, all bool) {
	fit := func(i int) (known, fit bool) {
		want, allowed := candidate.at(i/v.cols(), i%v.cols())
		fit = v.got[i] == want || math.Abs(v.got[i]-want) <= allowed || math.IsNaN(v.got[i]) && math.IsNaN(want) && math.IsInf(allowed, 1)
		return !math.IsInf(allowed, 1), fit
	}
	if known, fit := fit(v.WorstIndex); !known || !fit {
		return false, false
	}
	misfit := func(bad bool) bool {
		for i := range v.got {
			if v.bad(i) != bad {
				continue
			}
			if known, fit := fit(i); known && !fit {
				return true
			}
		}
		return false
	}
	if misfit(true) {
		return false, false
	}
	return true, !misfit(false)
}

// same tells whether all bad elements have the bits that b holds at their place.
func (v *verdict) same(b []byte) bool {
	size := v.Operand.Buffer.DType().Size()
	for i := range v.got {
		if v.bad(i) && ((i+1)*size > len(b) || !bytes.Equal(b[i*size:(i+1)*size], v.written[i*size:(i+1)*size])) {
			return false
		}
	}
	return true
}

// unwritten: the bad elements are what was there before, or zeros.
func (v *verdict) unwritten() string {
	if v.Bad > 1 && v.same(v.held) {
		return "nothing was written: the buffer holds what was there before"
	}
	first := math.NaN()
	for i, got := range v.got {
		if !v.bad(i) {
			continue
		}
		if math.IsNaN(first) {
			first = got
		}
		if got != first {
			return ""
		}
	}
	switch {
	case math.IsNaN(first) || math.IsInf(first, 0) || v.Bad == 1:
		return ""
	case v.Bad == v.Elements:
		return fmt.Sprintf("all elements are %g", first)
	}
	return fmt.Sprintf("all wrong elements are %g", first)
}

// stale: the bad elements are what the op wrote one step earlier.
func (v *verdict) stale() string {
	if v.Bad > 1 && v.same(v.last) && !v.same(v.held) {
		return fmt.Sprintf("it is what %s wrote in the step before: stale by one step", v.op.Site().Name)
	}
	return ""
}

// misplaced: keys or values that were written at a wrong row of the cache.
func (v *verdict) misplaced(in reader) string {
	o, ok := v.op.(*engine.KVWrite)
	if !ok {
		return ""
	}
	cache, own := v.Operand.Buffer, in["k"]
	if v.Operand.Name == "vcache" {
		own = in["v"]
	}
	host, err := cache.Host()
	if err != nil {
		return ""
	}
	for _, by := range []int{1, -1, 2, -2} {
		same := true
		for t := range o.Rows() {
			row := o.In.Pos + t + by
			for c := 0; same && c < o.Width; c++ {
				i := row*o.Width + c
				same = i >= 0 && i < cache.Len() && float64(num.Float32At(cache.DType(), host, i)) == own.at(t, c)
			}
		}
		if same {
			return fmt.Sprintf("the rows are in the cache %+d rows from their place", by)
		}
	}
	return ""
}

// positions names the positions of the bad rows, if they begin where something in the model or the engine ends.
func (v *verdict) positions() string {
	pass := v.op.Pass()
	perRow := v.Operand.Rows / max(1, pass.Rows) // attention has a row for each head
	if perRow != 1 {
		return ""
	}
	for r := range pass.Rows {
		for c := range v.cols() {
			if !v.bad(r*v.cols() + c) {
				continue
			}
			if p := pass.Pos + r; p > 0 && pass.Span.Chunk > 0 && p%pass.Span.Chunk == 0 && p == pass.Span.ChunkStart {
				return fmt.Sprintf("; position %d begins a chunk of %d", p, pass.Span.Chunk)
			}
			return ""
		}
	}
	return ""
}

// shape says where the bad ones of rows·cols elements lie, if that is plain.
func shape(rows, cols, count int, bad func(i int) bool) string {
	if count == rows*cols {
		return "all elements"
	}
	firstRow, lastRow, firstCol, lastCol, first, last, step, before := -1, 0, cols, 0, -1, 0, 0, -1
	var inRow []int
	for i := range rows * cols {
		if !bad(i) {
			continue
		}
		r, c := i/cols, i%cols
		if first < 0 {
			first, firstRow = i, r
		}
		if r == firstRow {
			inRow = append(inRow, c)
		}
		if before >= 0 && before/cols == r {
			step = gcd(step, c-before%cols)
		}
		last, lastRow, before = i, r, i
		firstCol, lastCol = min(firstCol, c), max(lastCol, c)
	}
	height, width := lastRow-firstRow+1, lastCol-firstCol+1
	where := fmt.Sprintf("in rows %d to %d", firstRow, lastRow)
	switch {
	case rows == 1:
		where = ""
	case height == 1:
		where = fmt.Sprintf("in row %d only", firstRow)
	case height == rows:
		where = "in every row"
	}
	switch {
	case count == 1: // the worst
		return ""
	case width == cols && count == height*cols && height == 1:
		return fmt.Sprintf("all elements of row %d, and no others", firstRow)
	case width == cols && count == height*cols && lastRow == rows-1:
		return fmt.Sprintf("all rows from %d on, and no others", firstRow)
	case width == cols && count == height*cols:
		return fmt.Sprintf("rows %d to %d, and no others", firstRow, lastRow)
	case count == height*width && width == 1:
		return strings.TrimSpace(fmt.Sprintf("exactly column %d %s", firstCol, where))
	case count == height*width && lastCol == cols-1:
		return strings.TrimSpace(fmt.Sprintf("exactly the columns from %d on %s", firstCol, where))
	case count == height*width:
		return strings.TrimSpace(fmt.Sprintf("exactly the columns %d to %d %s", firstCol, lastCol, where))
	case count == last-first+1:
		return fmt.Sprintf("the elements from [%d %d] to [%d %d], and no others", firstRow, first%cols, lastRow, last%cols)
	case step > 1 && count == height*len(inRow) && len(inRow) == (width-1)/step+1 && len(inRow) > 2:
		return strings.TrimSpace(fmt.Sprintf("every %s column from %d to %d %s", ordinal(step), firstCol, lastCol, where))
	case height == 1 && rows > 1:
		return fmt.Sprintf("elements of row %d only", firstRow)
	case firstRow > 0 && lastRow == rows-1 && count > height*cols/2:
		return fmt.Sprintf("elements of the rows from %d on only", firstRow)
	}
	return ""
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func ordinal(n int) string {
	suffix := "th"
	switch {
	case n%100 >= 11 && n%100 <= 13:
	case n%10 == 1:
		suffix = "st"
	case n%10 == 2:
		suffix = "nd"
	case n%10 == 3:
		suffix = "rd"
	}
	return fmt.Sprint(n, suffix)
}

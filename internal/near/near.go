// Package near finds the names that a mistyped one may have meant.
package near

import (
	"cmp"
	"slices"
	"strings"
)

// Names gives the candidates that differ from name in few letters, or contain it, the nearest first.
func Names(name string, candidates []string) []string {
	type scored struct {
		name     string
		distance int
	}
	var found []scored
	lower := strings.ToLower(name)
	for _, c := range candidates {
		d := distance(lower, strings.ToLower(c))
		if d <= max(2, len(name)/3) || lower != "" && strings.Contains(strings.ToLower(c), lower) {
			found = append(found, scored{c, d})
		}
	}
	slices.SortStableFunc(found, func(a, b scored) int { return cmp.Compare(a.distance, b.distance) })
	names := make([]string, len(found))
	for i, f := range found {
		names[i] = f.name
	}
	return names
}

// One is the nearest candidate, or fallback if none is near.
func One(name string, candidates []string, fallback string) string {
	if names := Names(name, candidates); len(names) > 0 {
		return names[0]
	}
	return fallback
}

// distance is the Levenshtein distance in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

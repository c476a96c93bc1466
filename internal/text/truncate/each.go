package truncate

import (
	"errors"
	"iter"
	"slices"
	"strings"
)

// maxWrong bounds the bytes of errors about the elements of one list. With all of a dialect's 25 settings
// wrong, that makes 50 KB, of which the plugin prints what fits.
const maxWrong = 2 << 10

// Each parses the elements of a list. Its error names every element that is wrong, on one line; equal errors once, and
// of more than 2 KiB the first. It then has parsed no further, because a pod's author controls the length of the list.
// The list beside an error is nil.
func Each[T any](parts iter.Seq[string], parse func(string) (T, error)) ([]T, error) {
	var list []T
	var first error
	var wrong []string
	size := 0
	for part := range parts {
		v, err := parse(part)
		if err == nil {
			list = append(list, v)
			continue
		}
		text := err.Error()
		if first == nil {
			first = err
		}
		if slices.Contains(wrong, text) {
			continue
		}
		if size += len(text); size > maxWrong && len(wrong) > 0 {
			wrong = append(wrong, "and more")
			break
		}
		wrong = append(wrong, text)
	}
	switch len(wrong) {
	case 0:
		return list, nil
	case 1:
		return nil, first
	}
	return nil, errors.New(strings.Join(wrong, "; "))
}

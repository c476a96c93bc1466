package conflist

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// The errors of Restore.
var (
	// ErrOtherNetwork: the list belongs to a network of another name than it did.
	ErrOtherNetwork = errors.New("the list is another network's")
	// ErrNoPlace: none of the plugins beside which the plugin stood is in the list any more.
	ErrNoPlace = errors.New("no plugin is left beside which it stood")
)

// Restore undoes [Remove]: was is the list before it, and data the list as it is now. If nobody has changed the list since, the
// result is was, byte for byte. Otherwise Restore inserts the plugins of the type that was had: each behind the plugin before it, if
// that is still there, or else before the one behind it, and every other byte of data stays. A list that has a plugin of the type
// again is returned as it is.
//
// Errors: [ErrInvalid] for data or was, [ErrSingle], [ErrNoInlinePlugins], [ErrLastPlugin] if was had no other plugin,
// [ErrOtherNetwork], [ErrNoPlace].
func Restore(data, was []byte, pluginType string) ([]byte, error) {
	old, err := parseForEdit(was)
	if err != nil {
		return nil, fmt.Errorf("read the list as it was: %w", err)
	}
	rest, err := Remove(was, pluginType)
	if err != nil {
		return nil, fmt.Errorf("read the list as it was: %w", err)
	}
	if bytes.Equal(rest, data) {
		return bytes.Clone(was), nil
	}
	f, err := parseForEdit(data)
	switch {
	case err != nil:
		return nil, err
	case f.name != old.name:
		return nil, fmt.Errorf("restore %q to network %q, which was %q: %w", pluginType, f.name, old.name, ErrOtherNetwork)
	case f.Has(pluginType):
		return bytes.Clone(data), nil
	}
	for _, i := range old.indexes(pluginType) {
		at := f.place(old, i)
		if at < 0 {
			return nil, fmt.Errorf("restore %q to network %q: %w", pluginType, f.name, ErrNoPlace)
		}
		if f, err = parseForEdit(f.insert(at, old.plugins[i].Raw)); err != nil {
			return nil, err
		}
	}
	return bytes.Clone(f.data), nil
}

// place is the position at which plugin i of the list as it was belongs; below 0 if there is none.
func (f *File) place(was *File, i int) int {
	for _, p := range slices.Backward(was.plugins[:i]) {
		if at := f.indexes(p.Type); len(at) > 0 {
			return at[len(at)-1] + 1
		}
	}
	for _, p := range was.plugins[i+1:] {
		if at := f.indexes(p.Type); len(at) > 0 {
			return at[0]
		}
	}
	return -1
}

// insert puts entry at position i, separated as its neighbours are. It is undone by cut.
func (f *File) insert(i int, entry []byte) []byte {
	if i == len(f.spans) {
		return f.append(entry)
	}
	next, gap := f.spans[i], span{f.array.start + 1, f.spans[0].start}
	if n := max(i, 1); n < len(f.spans) {
		gap = span{f.spans[n-1].end, f.spans[n].start}
		gap.start += bytes.IndexByte(gap.of(f.data), ',') + 1
	}
	ins := styleOf(f.data, next).render(nil, entry, top(entry), 0)
	ins = append(append(ins, ','), gap.of(f.data)...)
	return splice(f.data, span{next.start, next.start}, ins)
}

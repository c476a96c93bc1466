package documents_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/text/documents"
)

// TestSplit: each document is found, with its first line, however the stream is written.
func TestSplit(t *testing.T) {
	type doc struct {
		line int
		json string
	}
	for name, tt := range map[string]struct {
		text string
		want []doc
	}{
		"nothing":                    {"", nil},
		"comments alone":             {"# a\n\n# b\n", nil},
		"one":                        {"a: 1", []doc{{1, `{"a":1}`}}},
		"behind a comment":           {"# a\na: 1\n", []doc{{2, `{"a":1}`}}},
		"several, and empty ones":    {"---\na: 1\n---\n---\n# c\n---\nb: 2\n", []doc{{2, `{"a":1}`}, {3, "null"}, {4, "null"}, {7, `{"b":2}`}}},
		"lines of Windows":           {"a: 1\r\n---\r\nb: 2\r\n", []doc{{1, `{"a":1}`}, {3, `{"b":2}`}}},
		"lines of old Macs":          {"a: 1\r---\rb: 2\r", []doc{{1, `{"a":1}`}, {3, `{"b":2}`}}},
		"a byte order mark":          {"\xef\xbb\xbfa: 1\n", []doc{{1, `{"a":1}`}}},
		"content beside the marker":  {"--- {a: 1}\n--- # b\nb: 2\n", []doc{{1, `{"a":1}`}, {3, `{"b":2}`}}},
		"an end":                     {"a: 1\n...\nb: 2\n", []doc{{1, `{"a":1}`}, {3, `{"b":2}`}}},
		"a directive":                {"%YAML 1.1\n---\na: 1\n", []doc{{3, `{"a":1}`}}},
		"a marker within a text":     {"a: |\n  ---\n  x\n---x: 1\n", []doc{{1, `{"---x":1,"a":"---\nx\n"}`}}},
		"JSON":                       {"\n{\"a\": \"\\ud83d\\ude00\"}", []doc{{2, `{"a": "\ud83d\ude00"}`}}},
		"JSON, one after another":    {"{\"a\": 1}\n{\"b\":\n2}{\"c\": 3}", []doc{{1, `{"a": 1}`}, {2, "{\"b\":\n2}"}, {3, `{"c": 3}`}}},
		"JSON, separated as in YAML": {"{\"a\": 1}\n---\n{\"b\": 2}", []doc{{1, `{"a":1}`}, {3, `{"b":2}`}}},
		"YAML in braces":             {"{a: 1}", []doc{{1, `{"a":1}`}}},
	} {
		all, err := documents.Split([]byte(tt.text))
		require.NoError(t, err, name)
		var got []doc
		for _, d := range all {
			text, _ := d.JSON()
			got = append(got, doc{d.Place(), string(text)})
		}
		assert.Equal(t, tt.want, got, name)
	}
	_, err := documents.Split([]byte("\xff\xfea\x00:\x00"))
	assert.ErrorContains(t, err, "UTF-8")
}

// TestJSON: what an alias stands for is written out within the bound, and each fault has its line in the stream.
func TestJSON(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want string
		errs []string
	}{
		"an alias":              {"a: &x {b: 1}\nc: *x", `{"a":{"b":1},"c":{"b":1}}`, nil},
		"a mapping merged":      {"a: &x {b: 1, c: 2}\nd: {<<: *x, b: 3}", `{"a":{"b":1,"c":2},"d":{"b":3,"c":2}}`, nil},
		"an anchor in itself":   {"a: &x [*x]", "", []string{"line 1: the anchor x is in itself"}},
		"an ampersand in text":  {"a: b & c", `{"a":"b \u0026 c"}`, nil},
		"keys that are twice":   {"a: 1\nb: {c: 1, c: 2}\na: 2", "", []string{`line 2: the key "c" is there twice: it is on line 2 too`, `line 3: the key "a" is there twice: it is on line 1 too`}},
		"no YAML":               {"a: [1", "", []string{"line 1: did not find expected ',' or ']'"}},
		"a template of a chart": {"a: 1\nb: {{ .Values.b }}", "", []string{"which has to be rendered first"}},
	} {
		all, err := documents.Split([]byte(tt.text))
		require.NoError(t, err, name)
		require.Len(t, all, 1, name)
		text, errs := all[0].JSON()
		assert.Equal(t, tt.want, string(text), name)
		require.Len(t, errs, len(tt.errs), name)
		for i, want := range tt.errs {
			assert.ErrorContains(t, errs[i], want, name)
		}
	}
}

// TestLinesOfTheStream: a fault of a later document is named by its line in the file.
func TestLinesOfTheStream(t *testing.T) {
	all, err := documents.Split([]byte("a: 1\n---\nb:\n  c: 1\n  c: 2\n---\nd: [\n"))
	require.NoError(t, err)
	require.Len(t, all, 3)
	for i, line := range map[int]int{1: 5, 2: 8} {
		_, errs := all[i].JSON()
		require.Len(t, errs, 1)
		var e *documents.Error
		require.True(t, errors.As(errs[0], &e))
		assert.InDelta(t, line, e.Line, 1, "the library counts some faults to the line before")
	}
}

// TestAliasesAreBounded: a kilobyte does not become gigabytes.
func TestAliasesAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("a0: &a0 [" + strings.Repeat("x,", 100) + "x]\n")
	for i := range 8 {
		n := string(rune('0' + i))
		b.WriteString("a" + string(rune('1'+i)) + ": &a" + string(rune('1'+i)) + " [" + strings.Repeat("*a"+n+",", 20) + "*a" + n + "]\n")
	}
	all, err := documents.Split([]byte(b.String()))
	require.NoError(t, err)
	text, errs := all[0].JSON()
	assert.Empty(t, text)
	require.Len(t, errs, 1)
	assert.ErrorContains(t, errs[0], "with its aliases written out")

	all, err = documents.Split([]byte("a: " + strings.Repeat("x", documents.MaxSize)))
	require.NoError(t, err)
	_, errs = all[0].JSON()
	require.Len(t, errs, 1)
	assert.ErrorContains(t, errs[0], "are the most")
}

// TestPlace: a field's line is found through lists, aliases and merged mappings, and of one that is not there its parent's.
func TestPlace(t *testing.T) {
	all, err := documents.Split([]byte("---\nbase: &b\n  x: 1\nspec:\n  containers:\n  - name: a\n    image: i\n  - <<: *b\n    y: 2\nagain: *b\n"))
	require.NoError(t, err)
	for field, line := range map[string]int{
		"spec": 4, "spec.containers[0]": 6, "spec.containers[0].image": 7, "spec.containers[1].x": 8, "spec.containers[1].y": 9, "again.x": 3,
		"spec.containers[0].none": 6, "none": 2, "spec.containers[7]": 5,
	} {
		assert.Equal(t, line, all[0].Place(documents.Path(field)...), field)
	}
}

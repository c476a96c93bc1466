package podyaml_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/text/podyaml"
)

func TestUnmarshal(t *testing.T) {
	for text, want := range map[string]any{
		"a: 1":                          map[string]any{"a": 1.0},
		"a: \"fish & chips *\"":         map[string]any{"a": "fish & chips *"},
		"# a & b\na: yes":               map[string]any{"a": true},
		"a: |\n  x&y: *z\n":             map[string]any{"a": "x&y: *z\n"},
		`{"a": ["&b", "*b"]}`:           map[string]any{"a": []any{"&b", "*b"}},
		"a: b&c":                        map[string]any{"a": "b&c"},
		"":                              nil,
		strings.Repeat("# long\n", 100): nil,
	} {
		var got any
		require.NoError(t, podyaml.Unmarshal([]byte(text), 1000, &got), text)
		assert.Equal(t, want, got, text)
	}
}

func TestToJSON(t *testing.T) {
	got, err := podyaml.ToJSON([]byte("a: yes"), 0)
	require.NoError(t, err)
	assert.JSONEq(t, `{"a": true}`, string(got))
}

func TestRefused(t *testing.T) {
	scalar := strings.Repeat("x", 60_000)
	for name, c := range map[string]struct {
		text string
		err  error // nil: any
	}{
		"a scalar, repeated":     {"a: &s " + scalar + "\nb: [" + strings.Repeat("*s,", 20_000) + "]", podyaml.ErrAlias},
		"billion laughs":         {"a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nd: [*c,*c]", podyaml.ErrAlias},
		"a merge":                {"a: &a {x: 1}\nb: {<<: *a}", podyaml.ErrAlias},
		"an anchor alone":        {"a: &a 1", podyaml.ErrAlias},
		"of the whole":           {"&a [*a]", podyaml.ErrAlias},
		"on a key":               {"&a b: *a", podyaml.ErrAlias},
		"an alias of nothing":    {"a: *b", nil},
		"too long":               {"a: " + strings.Repeat("x", podyaml.MaxSize), podyaml.ErrSize},
		"nested beyond measure":  {strings.Repeat("[", 200_000), nil},
		"nested, with an anchor": {"&a " + strings.Repeat("{a: ", 50_000), nil},
	} {
		var got any
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := podyaml.Unmarshal([]byte(c.text), 0, &got)
		runtime.ReadMemStats(&after)
		require.Error(t, err, name)
		if c.err != nil {
			require.ErrorIs(t, err, c.err, name)
			_, err = podyaml.ToJSON([]byte(c.text), 0)
			require.ErrorIs(t, err, c.err, name)
		}
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100<<20), "%s: bytes taken", name)
	}
}

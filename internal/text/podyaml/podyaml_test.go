package podyaml_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	yamlv3 "go.yaml.in/yaml/v3"

	"github.com/meshcni/meshcni/internal/text/podyaml"
)

func TestUnmarshal(t *testing.T) {
	for text, want := range map[string]any{
		"a: 1":                          map[string]any{"a": 1.0},
		"a: \"fish & chips *\"":         map[string]any{"a": "fish & chips *"},
		"# a & b\na: yes":               map[string]any{"a": true},
		"a: |\n  x&y: *z\n":             map[string]any{"a": "x&y: *z\n"},
		`{"a": ["&b", "b"]}`:            map[string]any{"a": []any{"&b", "b"}},
		"a: &b 1":                       map[string]any{"a": 1.0},
		"a: http://c/?a=1&b=2 #*":       map[string]any{"a": "http://c/?a=1&b=2"},
		"ä: 1 # &b":                     map[string]any{"ä": 1.0},
		"a: b&c":                        map[string]any{"a": "b&c"},
		"":                              nil,
		strings.Repeat("# long\n", 100): nil,
	} {
		var got any
		require.NoError(t, podyaml.Unmarshal([]byte(text), 1000, &got), text)
		assert.Equal(t, want, got, text)
	}
}

// FuzzAliases: whatever the library finds to be an alias, in whatever place and script, is refused before it is decoded.
func FuzzAliases(f *testing.F) {
	for _, text := range []string{
		"a: &a 1\nb: *a", "[&a b,*a]", "{?&a b:*a}", "&a\n- *a", "a: &a |\n b\nc: *a", "'x'&a: 1", "- !!str &a b\n- *a", "&a {<<: *a}", "\ufeff&a [*a]", "%YAML 1.1\n---\n&a\n- *a",
		"a: &\u00e4 1\nb: *\u00e4", "a:\u2028&a 1\u0085*a", "\xfe\xff\x00&\x00a\x00 \x00[\x00*\x00a\x00]", "- &a b\n-\t*a", "[ \"\"*a,\"\"&a ]", "? &a b\n: *a",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var document yamlv3.Node
		if yamlv3.Unmarshal(text, &document) != nil {
			return
		}
		for nodes := []*yamlv3.Node{&document}; len(nodes) > 0; {
			n := nodes[len(nodes)-1]
			nodes = append(nodes[:len(nodes)-1], n.Content...)
			if n.Kind == yamlv3.AliasNode {
				_, err := podyaml.ToJSON(text, 0)
				require.ErrorIs(t, err, podyaml.ErrAlias, "%q", text)
			}
		}
	})
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
		"signs in quotes":        {`{"a": ["&b", "*b"]}`, podyaml.ErrAlias},
		"after a quote":          {`{"a"&a: 1, "b"*a: 2}`, podyaml.ErrAlias},
		"in UTF-16":              {"\xff\xfea\x00:\x00 \x00&\x00a\x00 \x001\x00\n\x00b\x00:\x00 \x00*\x00a\x00", podyaml.ErrAlias},
		"of the whole":           {"&a [*a]", podyaml.ErrAlias},
		"on a key":               {"&a b: *a", podyaml.ErrAlias},
		"an alias of nothing":    {"a: *b", nil},
		"too long":               {"a: " + strings.Repeat("x", podyaml.MaxSize), podyaml.ErrSize},
		"nested beyond measure":  {strings.Repeat("[", 200_000), nil},
		"nested, with an anchor": {"&a " + strings.Repeat("{a: ", 30_000), nil},
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

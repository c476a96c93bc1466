package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestIdentify(t *testing.T) {
	apache, err := os.ReadFile("../LICENSE")
	require.NoError(t, err)
	isc := []byte("ISC License\n\nPermission to use, copy, modify, and/or distribute this software for any\npurpose with or without fee is hereby granted, provided that the above\ncopyright notice and this permission notice appear in all copies.\n\nTHE SOFTWARE IS PROVIDED \"AS IS\" AND THE AUTHOR DISCLAIMS ALL WARRANTIES\nWITH REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF\nMERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR\nANY SPECIAL, DIRECT, INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES\nWHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN\nACTION OF CONTRACT, NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF\nOR IN CONNECTION WITH THE USE OR PERFORMANCE OF THIS SOFTWARE.\n")
	for name, tt := range map[string]struct {
		texts []file
		want  string
		err   string
	}{
		"one":              {texts: []file{{name: "LICENSE", data: apache}}, want: "Apache-2.0"},
		"two":              {texts: []file{{name: "x/LICENSE", data: isc}, {name: "LICENSE", data: apache}}, want: "Apache-2.0 AND ISC"},
		"the same twice":   {texts: []file{{name: "x/LICENSE", data: isc}, {name: "LICENSE", data: isc}}, want: "ISC"},
		"a notice besides": {texts: []file{{name: "LICENSE", data: isc}, {name: "NOTICE.txt", data: []byte("by us")}}, want: "ISC"},
		"a notice alone":   {texts: []file{{name: "NOTICE", data: []byte("by us")}}, err: "there is none"},
		"none":             {err: "there is none"},
		"of one's own":     {texts: []file{{name: "LICENSE", data: []byte("You may look at this, but not touch it.")}}, err: "0 % like a licence that is known"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := identify(tt.texts)
			if tt.err != "" {
				assert.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.want, got)
		})
	}
}

// TestAddTexts: from a package up to its module's root, what may be a licence, and no code that is called like one.
func TestAddTexts(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{
		"LICENSE", "NOTICE.md", "license.go", "README", "a/COPYING", "a/b/License-MIT.txt", "a/b/c/LICENCE", "a/licenses/LICENSE", "other/LICENSE",
	} {
		file := filepath.Join(root, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(name), 0o644))
	}
	var m linkedModule
	require.NoError(t, m.addTexts(root, filepath.Join(root, "a", "b")))
	require.NoError(t, m.addTexts(root, filepath.Join(root, "a")), "another package")
	var names []string
	for _, f := range m.texts {
		names = append(names, f.name)
		assert.Equal(t, f.name, string(f.data))
	}
	assert.ElementsMatch(t, []string{"a/b/License-MIT.txt", "a/COPYING", "LICENSE", "NOTICE.md"}, names)
	assert.ErrorContains(t, m.addTexts(root, filepath.Dir(root)), "is not in module")
}

package modules

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/release/internal/files"
)

func TestIdentify(t *testing.T) {
	apache, err := os.ReadFile("../../../LICENSE")
	require.NoError(t, err)
	isc := []byte("ISC License\n\nPermission to use, copy, modify, and/or distribute this software for any\npurpose with or without fee is hereby granted, provided that the above\ncopyright notice and this permission notice appear in all copies.\n\nTHE SOFTWARE IS PROVIDED \"AS IS\" AND THE AUTHOR DISCLAIMS ALL WARRANTIES\nWITH REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF\nMERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR\nANY SPECIAL, DIRECT, INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES\nWHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN\nACTION OF CONTRACT, NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF\nOR IN CONNECTION WITH THE USE OR PERFORMANCE OF THIS SOFTWARE.\n")
	for name, tt := range map[string]struct {
		texts []files.File
		want  string
		err   string
	}{
		"one":              {texts: []files.File{{Name: "LICENSE", Data: apache}}, want: "Apache-2.0"},
		"two":              {texts: []files.File{{Name: "x/LICENSE", Data: isc}, {Name: "LICENSE", Data: apache}}, want: "Apache-2.0 AND ISC"},
		"the same twice":   {texts: []files.File{{Name: "x/LICENSE", Data: isc}, {Name: "LICENSE", Data: isc}}, want: "ISC"},
		"a notice besides": {texts: []files.File{{Name: "LICENSE", Data: isc}, {Name: "NOTICE.txt", Data: []byte("by us")}}, want: "ISC"},
		"a notice alone":   {texts: []files.File{{Name: "NOTICE", Data: []byte("by us")}}, err: "there is none"},
		"none":             {err: "there is none"},
		"of one's own":     {texts: []files.File{{Name: "LICENSE", Data: []byte("You may look at this, but not touch it.")}}, err: "0 % like a licence that is known"},
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
	var m Module
	require.NoError(t, m.addTexts(root, filepath.Join(root, "a", "b")))
	require.NoError(t, m.addTexts(root, filepath.Join(root, "a")), "another package")
	var names []string
	for _, f := range m.Texts {
		names = append(names, f.Name)
		assert.Equal(t, f.Name, string(f.Data))
	}
	assert.ElementsMatch(t, []string{"a/b/License-MIT.txt", "a/COPYING", "LICENSE", "NOTICE.md"}, names)
	assert.ErrorContains(t, m.addTexts(root, filepath.Dir(root)), "is not in module")
}

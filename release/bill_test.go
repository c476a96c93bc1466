package main

import (
	"bytes"
	"debug/buildinfo"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// schema is CycloneDX's own, which its library's module has, as it has the others that this one speaks of.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	require.NoError(t, err)
	dir := filepath.Join(strings.TrimSpace(string(out)), "schema")
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	for name, file := range map[string]string{
		"bom-1.6.schema.json": "bom-1.6.schema.json", "spdx.schema.json": "spdx.schema.json", "jsf-0.82.schema.json": "jsf-0.82.schemax.json",
	} {
		f, err := os.Open(filepath.Join(dir, file))
		require.NoError(t, err)
		defer f.Close()
		doc, err := jsonschema.UnmarshalJSON(f)
		require.NoError(t, err)
		require.NoError(t, c.AddResource("http://cyclonedx.org/schema/"+name, doc))
	}
	s, err := c.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	require.NoError(t, err)
	return s
}

// TestBills: each bill of materials is one by its format's schema, and names all that is linked into each program.
func TestBills(t *testing.T) {
	valid := schema(t)
	for arch, img := range images(t) {
		programs := map[string][]byte{}
		var inside []byte
		for _, e := range rootfs(t, img) {
			if strings.HasSuffix(e.Name, ".cdx.json") {
				inside = e.data
			} else if slices.Contains(programsAt, e.Name) {
				programs[path.Base(e.Name)] = e.data
			}
		}
		require.Len(t, programs, len(programsAt))
		manifest, err := img.Digest()
		require.NoError(t, err)
		archive, err := os.ReadFile(filepath.Join(outDir(t), "meshcni_1.2.3-test.1_linux_"+arch+".tar.gz"))
		require.NoError(t, err)
		read := func(name string) []byte {
			text, err := os.ReadFile(filepath.Join(outDir(t), "meshcni_1.2.3-test.1_"+name+".cdx.json"))
			require.NoError(t, err)
			return text
		}
		for name, tt := range map[string]struct {
			text   []byte
			digest string
		}{
			"in the image":   {inside, ""},
			"of the image":   {read("image_linux_" + arch), manifest.Hex},
			"of the archive": {read("linux_" + arch), sum(archive)},
		} {
			t.Run(arch+" "+name, func(t *testing.T) {
				doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(tt.text))
				require.NoError(t, err)
				require.NoError(t, valid.Validate(doc))
				var bom cdx.BOM
				require.NoError(t, cdx.NewBOMDecoder(bytes.NewReader(tt.text), cdx.BOMFileFormatJSON).Decode(&bom))
				assert.Equal(t, testVersion, bom.Metadata.Component.Version)
				if tt.digest != "" {
					assert.Equal(t, tt.digest, (*bom.Metadata.Component.Hashes)[0].Value)
				}
				inspectBill(t, bom, programs)
			})
		}
	}
}

func inspectBill(t *testing.T, bom cdx.BOM, programs map[string][]byte) {
	t.Helper()
	byRef := map[string]cdx.Component{bom.Metadata.Component.BOMRef: *bom.Metadata.Component}
	for _, c := range *bom.Components {
		assert.NotContains(t, byRef, c.BOMRef)
		byRef[c.BOMRef] = c
		if assert.NotNil(t, c.Licenses, c.Name) {
			l := (*c.Licenses)[0]
			assert.True(t, l.Expression != "" || l.License.ID != "", c.Name)
		}
	}
	edges := map[string][]string{}
	for _, d := range *bom.Dependencies {
		assert.Contains(t, byRef, d.Ref)
		if d.Dependencies == nil {
			continue // the standard library
		}
		edges[d.Ref] = *d.Dependencies
		for _, on := range *d.Dependencies {
			assert.Contains(t, byRef, on, "which %s is said to depend on", d.Ref)
		}
	}
	for name, data := range programs {
		c, ok := byRef["program:"+name]
		require.True(t, ok, name)
		assert.Equal(t, sum(data), (*c.Hashes)[0].Value, name)
		info, err := buildinfo.Read(bytes.NewReader(data))
		require.NoError(t, err)
		assert.Contains(t, edges[c.BOMRef], "pkg:golang/stdlib@"+strings.TrimPrefix(info.GoVersion, "go"))
		assert.Len(t, edges[c.BOMRef], len(others(info))+2, "its modules, its own, and the standard library")
		for _, d := range others(info) {
			ref := "pkg:golang/" + d.Path + "@" + d.Version
			assert.Contains(t, edges[c.BOMRef], ref, name)
			m := byRef[ref]
			assert.Equal(t, d.Version, m.Version)
			require.NotNil(t, m.Properties, ref)
			assert.Contains(t, *m.Properties, cdx.Property{Name: "go:sum", Value: d.Sum})
		}
	}
	// What imports what, for one that is sure to stay.
	var api string
	for ref := range edges {
		if strings.HasPrefix(ref, "pkg:golang/k8s.io/api@") {
			api = ref
		}
	}
	require.NotEmpty(t, api)
	assert.Contains(t, strings.Join(edges[api], " "), "pkg:golang/k8s.io/apimachinery@")
}

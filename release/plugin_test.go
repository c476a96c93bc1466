package main

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"debug/macho"
	"debug/pe"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// krewManifest is what krew reads of a plugin's manifest.
type krewManifest struct {
	APIVersion string
	Kind       string
	Metadata   struct{ Name string }
	Spec       struct {
		Version, Homepage, ShortDescription, Description, Caveats string

		Platforms []struct {
			Selector         struct{ MatchLabels map[string]string }
			URI, Sha256, Bin string
			Files            []struct{ From, To string }
		}
	}
}

// TestPlugin: the manifest for krew names an archive of each platform by its true digest, in which the program is for that
// platform, with its bill of materials and the licences of what is linked into it.
func TestPlugin(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(outDir(t), "meshcni.yaml"))
	require.NoError(t, err)
	var m krewManifest
	require.NoError(t, yaml.UnmarshalStrict(text, &m), string(text))
	assert.Equal(t, []string{"krew.googlecontainertools.github.com/v1alpha2", "Plugin", "meshcni", testVersion}, []string{m.APIVersion, m.Kind, m.Metadata.Name, m.Spec.Version})
	assert.NotEmpty(t, m.Spec.ShortDescription)
	assert.LessOrEqual(t, len(m.Spec.ShortDescription), 50, "as krew's index asks")
	valid := schema(t)
	found := map[string]bool{}
	for _, p := range m.Spec.Platforms {
		system, arch := p.Selector.MatchLabels["os"], p.Selector.MatchLabels["arch"]
		found[system+"/"+arch] = true
		base := "kubectl-meshcni_1.2.3-test.1_" + system + "_" + arch
		assert.Equal(t, m.Spec.Homepage+"/releases/download/"+testVersion+"/"+base+".tar.gz", p.URI)
		archive, err := os.ReadFile(filepath.Join(outDir(t), path.Base(p.URI)))
		require.NoError(t, err)
		assert.Equal(t, sum(archive), p.Sha256, p.URI)
		require.Len(t, p.Files, 1)
		assert.Equal(t, ".", p.Files[0].To)
		var program []byte
		texts := map[string]bool{}
		for _, e := range untargz(t, filepath.Join(outDir(t), base+".tar.gz")) {
			if e.Name == path.Dir(p.Files[0].From)+"/"+p.Bin {
				program = e.data
				assert.EqualValues(t, 0o755, e.Mode)
			}
			if name, ok := strings.CutPrefix(e.Name, base+"/third_party/"); ok {
				texts[path.Dir(name)] = true
			}
		}
		require.NotEmpty(t, program, p.URI)
		assert.Equal(t, system+"/"+arch, platformOf(t, program))
		info, err := buildinfo.Read(bytes.NewReader(program))
		require.NoError(t, err)
		for _, d := range others(info) {
			assert.True(t, texts[d.Path], "no licence of %s in %s", d.Path, base)
		}
		bill, err := os.ReadFile(filepath.Join(outDir(t), base+".cdx.json"))
		require.NoError(t, err)
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(bill))
		require.NoError(t, err)
		require.NoError(t, valid.Validate(doc))
		var bom cdx.BOM
		require.NoError(t, cdx.NewBOMDecoder(bytes.NewReader(bill), cdx.BOMFileFormatJSON).Decode(&bom))
		assert.Equal(t, sum(archive), (*bom.Metadata.Component.Hashes)[0].Value)
		assert.Equal(t, []cdx.Property{{Name: "platform", Value: system + "/" + arch}}, *bom.Metadata.Component.Properties)
		inspectBill(t, bom, map[string][]byte{"kubectl-meshcni": program})
	}
	want := map[string]bool{}
	for _, p := range pluginPlatforms {
		want[p] = true
	}
	assert.Equal(t, want, found)
}

// platformOf is the platform of an executable by its header, as the system that runs it reads it.
func platformOf(t *testing.T, program []byte) string {
	t.Helper()
	r := bytes.NewReader(program)
	if f, err := elf.NewFile(r); err == nil {
		return map[elf.Machine]string{elf.EM_X86_64: "linux/amd64", elf.EM_AARCH64: "linux/arm64"}[f.Machine]
	}
	if f, err := macho.NewFile(r); err == nil {
		return map[macho.Cpu]string{macho.CpuAmd64: "darwin/amd64", macho.CpuArm64: "darwin/arm64"}[f.Cpu]
	}
	f, err := pe.NewFile(r)
	require.NoError(t, err)
	return map[uint16]string{pe.IMAGE_FILE_MACHINE_AMD64: "windows/amd64", pe.IMAGE_FILE_MACHINE_ARM64: "windows/arm64"}[f.Machine]
}

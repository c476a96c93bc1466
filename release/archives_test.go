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

// TestPlugin: for each platform krew's manifest names an archive by its true digest, in which the program is for that platform, with
// its bill of materials and the licences of what is linked into it. krew itself takes the manifest in e2e/release.
func TestPlugin(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(outDir(t), "meshcni.yaml"))
	require.NoError(t, err)
	var m struct {
		Spec struct {
			ShortDescription string
			Platforms        []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, Sha256, Bin string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &m), string(text))
	assert.LessOrEqual(t, len(m.Spec.ShortDescription), 50, "as krew's index asks")
	assert.Len(t, m.Spec.Platforms, len(plugins))
	valid := schema(t)
	for i, p := range m.Spec.Platforms {
		at := plugins[i]
		assert.Equal(t, map[string]string{"os": at.os, "arch": at.arch}, p.Selector.MatchLabels)
		base := "kubectl-meshcni_1.2.3-test.1_" + at.os + "_" + at.arch
		assert.Equal(t, "https://github.com/meshcni/meshcni/releases/download/"+testVersion+"/"+base+".tar.gz", p.URI)
		archive, err := os.ReadFile(filepath.Join(outDir(t), base+".tar.gz"))
		require.NoError(t, err)
		assert.Equal(t, sum(archive), p.Sha256, p.URI)
		program, migrate := []byte(nil), []byte(nil)
		texts := map[string]bool{}
		for _, e := range untargz(t, filepath.Join(outDir(t), base+".tar.gz")) {
			if e.Name == base+"/"+p.Bin {
				program = e.data
				assert.EqualValues(t, 0o755, e.Mode)
			}
			if strings.HasPrefix(e.Name, base+"/kubectl-meshcni-migrate") {
				migrate = e.data
			}
			if name, ok := strings.CutPrefix(e.Name, base+"/third_party/"); ok {
				texts[path.Dir(name)] = true
			}
		}
		require.NotEmpty(t, program, p.URI)
		assert.Equal(t, at.String(), platformOf(t, program))
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
		assert.Equal(t, []cdx.Property{{Name: "platform", Value: at.String()}}, *bom.Metadata.Component.Properties)
		inspectBill(t, bom, map[string][]byte{"kubectl-meshcni": program, "kubectl-meshcni-migrate": migrate})
	}
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

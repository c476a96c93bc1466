package main

import (
	"archive/tar"
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// programsAt are where the image has them, sorted.
var programsAt = slices.Sorted(maps.Values(nodePrograms))

// initProgramAt is a second name of meshcni-redirect.
const initProgramAt = "usr/local/bin/istio-iptables"

// openLayout unpacks the OCI layout, and returns the index of the images that it is all about.
func openLayout(t *testing.T) v1.ImageIndex {
	t.Helper()
	f, err := os.Open(filepath.Join(outDir(t), "meshcni_1.2.3-test.1_image_oci.tar"))
	require.NoError(t, err)
	defer f.Close()
	dir := t.TempDir()
	for _, e := range untar(t, f) {
		assert.Equal(t, int64(1234567890), e.ModTime.Unix(), e.Name)
		to := filepath.Join(dir, e.Name)
		if strings.HasSuffix(e.Name, "/") {
			require.NoError(t, os.MkdirAll(to, 0o755))
			continue
		}
		require.NoError(t, os.WriteFile(to, e.data, 0o644))
	}
	outer, err := layout.ImageIndexFromPath(dir)
	require.NoError(t, err)
	m, err := outer.IndexManifest()
	require.NoError(t, err)
	require.Len(t, m.Manifests, 1, "tools that take a layout of one image take no other")
	assert.Equal(t, testRegistry+"/meshcni/meshcni:"+testVersion, m.Manifests[0].Annotations["io.containerd.image.name"])
	assert.Equal(t, testVersion, m.Manifests[0].Annotations["org.opencontainers.image.ref.name"])
	index, err := outer.ImageIndex(m.Manifests[0].Digest)
	require.NoError(t, err)
	return index
}

// images are those in the layout, by architecture.
func images(t *testing.T) map[string]v1.Image {
	t.Helper()
	index := openLayout(t)
	require.NoError(t, validate.Index(index, validate.Fast))
	m, err := index.IndexManifest()
	require.NoError(t, err)
	assert.Equal(t, testVersion, m.Annotations["org.opencontainers.image.version"])
	found := map[string]v1.Image{}
	for _, d := range m.Manifests {
		require.NotNil(t, d.Platform)
		assert.Equal(t, "linux", d.Platform.OS)
		found[d.Platform.Architecture], err = index.Image(d.Digest)
		require.NoError(t, err)
	}
	require.Len(t, found, 2)
	require.NotNil(t, found["amd64"])
	require.NotNil(t, found["arm64"])
	return found
}

// layer is an image's only one.
func layer(t *testing.T, img v1.Image) v1.Layer {
	t.Helper()
	layers, err := img.Layers()
	require.NoError(t, err)
	require.Len(t, layers, 1)
	return layers[0]
}

// rootfs are the entries of an image's layer.
func rootfs(t *testing.T, img v1.Image) []entry {
	t.Helper()
	l := layer(t, img)
	// The library's validator knows gzip alone.
	want, err := l.Digest()
	require.NoError(t, err)
	assert.Equal(t, want, hash(t, l.Compressed))
	config, err := img.ConfigFile()
	require.NoError(t, err)
	assert.Equal(t, config.RootFS.DiffIDs, []v1.Hash{hash(t, l.Uncompressed)})
	r, err := l.Uncompressed()
	require.NoError(t, err)
	defer r.Close()
	return untar(t, r)
}

func hash(t *testing.T, open func() (io.ReadCloser, error)) v1.Hash {
	t.Helper()
	r, err := open()
	require.NoError(t, err)
	defer r.Close()
	h, _, err := v1.SHA256(r)
	require.NoError(t, err)
	return h
}

func TestImageConfig(t *testing.T) {
	for arch, img := range images(t) {
		c, err := img.ConfigFile()
		require.NoError(t, err)
		assert.Equal(t, "linux", c.OS)
		assert.Equal(t, arch, c.Architecture)
		assert.Equal(t, []string{"/usr/local/bin/meshcni-node"}, c.Config.Entrypoint)
		assert.Equal(t, []string{"run"}, c.Config.Cmd)
		assert.Equal(t, "0:0", c.Config.User)
		assert.Equal(t, "/", c.Config.WorkingDir)
		assert.Equal(t, time.Unix(1234567890, 0).UTC(), c.Created.UTC())
		assert.Equal(t, map[string]string{
			"org.opencontainers.image.title":         "meshcni",
			"org.opencontainers.image.description":   "CNI plugin and node agent that put pods' traffic through their service mesh's proxy",
			"org.opencontainers.image.licenses":      "Apache-2.0",
			"org.opencontainers.image.source":        "https://github.com/meshcni/meshcni",
			"org.opencontainers.image.documentation": "https://github.com/meshcni/meshcni/tree/main/docs",
			"org.opencontainers.image.version":       testVersion,
			"org.opencontainers.image.revision":      testCommit,
			"org.opencontainers.image.created":       "2009-02-13T23:31:30Z",
		}, c.Config.Labels)
	}
}

// TestDockerArchives: what is loaded from them is the same image, by its ID.
func TestDockerArchives(t *testing.T) {
	for arch, img := range images(t) {
		file := filepath.Join(outDir(t), "meshcni_1.2.3-test.1_image_linux_"+arch+".docker.tar")
		loaded, err := tarball.ImageFromPath(file, nil)
		require.NoError(t, err)
		require.NoError(t, validate.Image(loaded))
		want, err := img.ConfigName()
		require.NoError(t, err)
		got, err := loaded.ConfigName()
		require.NoError(t, err)
		assert.Equal(t, want, got)
		m, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(file) })
		require.NoError(t, err)
		require.Len(t, m, 1)
		assert.Equal(t, []string{testRegistry + "/meshcni/meshcni:" + testVersion}, m[0].RepoTags)
	}
}

// maxPull is what a node may have to pull, in bytes: five programs, of which client-go's leader election has one link every type of
// Kubernetes. What grew beyond it links more than it needs.
const maxPull = 21_000_000

func TestPull(t *testing.T) {
	for arch, img := range images(t) {
		size, err := layer(t, img).Size()
		require.NoError(t, err)
		assert.Less(t, size, int64(maxPull), arch)
	}
}

// TestImageFiles: every file, who owns it, who may run it, from when it is.
func TestImageFiles(t *testing.T) {
	for arch, img := range images(t) {
		entries := rootfs(t, img)
		var dirs, plain []string
		for _, e := range entries {
			assert.Zero(t, e.Uid, e.Name)
			assert.Zero(t, e.Gid, e.Name)
			assert.Empty(t, e.Uname+e.Gname, e.Name)
			assert.Equal(t, int64(1234567890), e.ModTime.Unix(), e.Name)
			dir, isDir := strings.CutSuffix(e.Name, "/")
			switch {
			case isDir:
				assert.EqualValues(t, 0o755, e.Mode, e.Name)
				dirs = append(dirs, dir)
				continue
			case e.Name == initProgramAt:
				assert.EqualValues(t, tar.TypeSymlink, e.Typeflag)
				assert.Equal(t, "meshcni-redirect", e.Linkname)
			case slices.Contains(programsAt, e.Name):
				assert.EqualValues(t, 0o755, e.Mode, e.Name)
				inspectProgram(t, arch, e)
			default:
				assert.EqualValues(t, 0o644, e.Mode, e.Name)
			}
			assert.Contains(t, dirs, path.Dir(e.Name), "it comes before its directory")
			if !strings.HasPrefix(e.Name, "licenses/third_party/") {
				plain = append(plain, e.Name)
			}
		}
		assert.Equal(t, slices.Concat([]string{"licenses/LICENSE"}, programsAt[:1], []string{initProgramAt}, programsAt[1:], []string{"usr/local/share/meshcni/sbom.cdx.json"}), plain)
		assert.True(t, slices.IsSortedFunc(entries, func(a, b entry) int {
			return strings.Compare(strings.TrimSuffix(a.Name, "/"), strings.TrimSuffix(b.Name, "/"))
		}))
	}
}

func inspectProgram(t *testing.T, arch string, e entry) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(e.data))
	require.NoError(t, err)
	assert.Equal(t, machines[arch], f.Machine, e.Name)
	libraries, err := f.ImportedLibraries()
	require.NoError(t, err)
	assert.Empty(t, libraries, e.Name)
	assert.False(t, bytes.Contains(e.data, []byte(temp)), "%s tells where it was built", e.Name)
	if arch != runtime.GOARCH {
		return
	}
	file := filepath.Join(t.TempDir(), path.Base(e.Name))
	require.NoError(t, os.WriteFile(file, e.data, 0o755))
	out, err := exec.CommandContext(t.Context(), file, "--version").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), testVersion+" (commit 0123456789ab, 2009-02-13T23:31:30Z, go")
}

// TestLicences: the texts of every module that any of the programs has are with them, in the image and in the archive.
func TestLicences(t *testing.T) {
	ours, err := os.ReadFile("../LICENSE")
	require.NoError(t, err)
	for arch, img := range images(t) {
		trees := map[string][]entry{
			"licenses/": rootfs(t, img),
			"meshcni_1.2.3-test.1_linux_" + arch + "/": untargz(t, filepath.Join(outDir(t), "meshcni_1.2.3-test.1_linux_"+arch+".tar.gz")),
		}
		for root, tree := range trees {
			texts := map[string]bool{}
			modules := map[string]bool{"stdlib": true}
			for _, e := range tree {
				if name, ok := strings.CutPrefix(e.Name, root+"third_party/"); ok && len(e.data) > 500 {
					texts[path.Dir(name)] = true
				}
				if e.Name == root+"LICENSE" {
					assert.Equal(t, string(ours), string(e.data))
				}
				if info, err := buildinfo.Read(bytes.NewReader(e.data)); err == nil {
					for _, d := range others(info) {
						modules[d.Path] = true
					}
				}
			}
			assert.Greater(t, len(modules), 30)
			for m := range modules {
				assert.True(t, texts[m], "no licence of %s below %s", m, root)
			}
		}
	}
}

// others are the modules that are linked into a program and are not of this repository, whose modules a release takes as
// one.
func others(info *buildinfo.BuildInfo) []*debug.Module {
	return slices.DeleteFunc(slices.Clone(info.Deps), func(d *debug.Module) bool { return moduleOf(d.Path) == ourModule })
}

// TestArchives: the same programs as in the image.
func TestArchives(t *testing.T) {
	for arch, img := range images(t) {
		inImage := map[string][]byte{}
		for _, e := range rootfs(t, img) {
			if slices.Contains(programsAt, e.Name) {
				inImage[path.Base(e.Name)] = e.data
			}
		}
		found := 0
		for _, e := range untargz(t, filepath.Join(outDir(t), "meshcni_1.2.3-test.1_linux_"+arch+".tar.gz")) {
			rel, ok := strings.CutPrefix(e.Name, "meshcni_1.2.3-test.1_linux_"+arch+"/")
			require.True(t, ok, "%s is not in the archive's one directory", e.Name)
			switch {
			case strings.HasPrefix(rel, "meshcni"):
				found++
				assert.EqualValues(t, 0o755, e.Mode, rel)
				assert.True(t, bytes.Equal(inImage[rel], e.data), rel)
			case rel == "README.md":
				found++
			}
		}
		assert.Equal(t, len(programsAt)+1, found)
	}
}

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/release/internal/source"
)

// The release that the tests look at. Its suffix and commit are made up, its time is one that no clock shows.
const (
	testVersion = "v1.2.3-test.1"
	testCommit  = "0123456789abcdef0123456789abcdef01234567"
	testEpoch   = "1234567890"
)

var (
	temp string // of the fixture
	// testRegistry is a registry of this process, for which the release is made.
	testRegistry string
	serving      atomic.Value // of http.Handler
)

// emptyRegistry forgets what was pushed.
func emptyRegistry() { serving.Store(registry.New(registry.Logger(log.New(io.Discard, "", 0)))) }

func TestMain(m *testing.M) {
	var err error
	if temp, err = os.MkdirTemp("", "meshcni-release-test-"); err != nil {
		panic(err)
	}
	emptyRegistry()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serving.Load().(http.Handler).ServeHTTP(w, r)
	}))
	testRegistry = server.Listener.Addr().String() + "/team"
	code := m.Run()
	server.Close()
	if err := os.RemoveAll(temp); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// released makes the whole release once, from a copy of the sources that is no checkout.
var released = sync.OnceValues(func() (string, error) {
	sources, out := filepath.Join(temp, "a"), filepath.Join(temp, "dist")
	if err := copyTree("..", sources, nil); err != nil {
		return "", err
	}
	if err := os.Setenv("SOURCE_DATE_EPOCH", testEpoch); err != nil {
		return "", err
	}
	c := command()
	c.SetArgs([]string{"all", "--plugin", strings.Join(pluginPlatforms, ","), "--source", sources, "--output", out, "--version", testVersion, "--commit", testCommit, "--registry", testRegistry})
	c.SetOut(io.Discard)
	return out, errors.Join(c.ExecuteContext(context.Background()), os.Unsetenv("SOURCE_DATE_EPOCH"))
})

func outDir(t *testing.T) string {
	t.Helper()
	dir, err := released()
	require.NoError(t, err)
	return dir
}

// copyTree copies sources, except for what is no source, and what is in leave: paths from the root.
func copyTree(from, to string, leave []string) error {
	leave = append([]string{".git", ".cache", "bin", "dist", "playground/node_modules", "playground/dist"}, leave...)
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // somebody's temporary file
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if slices.Contains(leave, filepath.ToSlash(rel)) {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), text, 0o600)
	})
}

// TestVerify: the same bytes come out of another directory, of files that belong to somebody else, with another umask and
// time zone, whatever the user's settings of the go command are. That is also what verify does.
func TestVerify(t *testing.T) {
	out := outDir(t)
	sources := filepath.Join(t.TempDir(), "somewhere", "else", "b")
	require.NoError(t, os.MkdirAll(sources, 0o755))
	// Of the copy that the first was made of, since the sources may have changed meanwhile.
	require.NoError(t, copyTree(filepath.Join(temp, "a"), sources, nil))
	if os.Getuid() == 0 {
		require.NoError(t, filepath.WalkDir(sources, func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Chown(path, 12345, 54321))
		}))
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `umask 077; exec go -C "$1/release" run . verify "$2"`, "sh", sources, out)
	cmd.Env = append(os.Environ(), "TZ=Pacific/Chatham", "LC_ALL=C.UTF-8", "GOAMD64=v3", "GOARM64=v9.0", "CGO_ENABLED=1", "GOFLAGS=-buildvcs=auto -tags=other")
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	assert.Contains(t, string(text), fmt.Sprintf("a second build of the sources made the same %d files, byte for byte", 13+2*len(pluginPlatforms)))
	assert.Contains(t, string(text), "its chart and manifests install from "+testRegistry+"\n")
}

// TestVerifyRefuses: other sources do not make the same.
func TestVerifyRefuses(t *testing.T) {
	tampered := filepath.Join(t.TempDir(), "dist")
	require.NoError(t, os.CopyFS(tampered, os.DirFS(outDir(t))))
	bill := filepath.Join(tampered, "meshcni_1.2.3-test.1_linux_arm64.cdx.json")
	text, err := os.ReadFile(bill)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(bill, bytes.Replace(text, []byte("k8s.io/api"), []byte("k8s.io/apo"), 1), 0o644))
	c := command()
	c.SetArgs([]string{"verify", tampered})
	c.SetOut(io.Discard)
	assert.ErrorContains(t, c.ExecuteContext(t.Context()), "meshcni_1.2.3-test.1_linux_arm64.cdx.json is not what was released")
}

func TestFiles(t *testing.T) {
	var names []string
	entries, err := os.ReadDir(outDir(t))
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := []string{
		"checksums.txt",
		"meshcni-1.2.3-test.1.tgz",
		"meshcni.yaml",
		"meshcni_1.2.3-test.1_image_linux_amd64.cdx.json",
		"meshcni_1.2.3-test.1_image_linux_amd64.docker.tar",
		"meshcni_1.2.3-test.1_image_linux_arm64.cdx.json",
		"meshcni_1.2.3-test.1_image_linux_arm64.docker.tar",
		"meshcni_1.2.3-test.1_image_oci.tar",
		"meshcni_1.2.3-test.1_linux_amd64.cdx.json",
		"meshcni_1.2.3-test.1_linux_amd64.tar.gz",
		"meshcni_1.2.3-test.1_linux_arm64.cdx.json",
		"meshcni_1.2.3-test.1_linux_arm64.tar.gz",
		"meshcni_1.2.3-test.1_manifests.tar.gz",
		"release.json",
	}
	for _, p := range pluginPlatforms {
		base := "kubectl-meshcni_1.2.3-test.1_" + strings.ReplaceAll(p, "/", "_")
		want = append(want, base+".cdx.json", base+".tar.gz")
	}
	slices.Sort(want)
	assert.Equal(t, want, names)
}

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"image", "--version", "1.2.3"}, `version "1.2.3" is not of the form v1.2.3`},
		{[]string{"image", "--version", "v1.2.3+more"}, `version "v1.2.3+more" is not of the form v1.2.3`},
		{[]string{"image", "--version", "v1.2.3", "--commit", "main"}, `commit "main" is not the hash of a commit`},
		{[]string{"image", "--version", "v1.2.3", "--arch", "riscv64"}, `architecture "riscv64": only amd64 and arm64`},
		{[]string{"chart", "--version", "v1.2.3", "--registry", "team"}, `registry "team" makes no image's name: "team/meshcni/meshcni:v1.2.3"`},
		{[]string{"chart", "--version", "v1.2.3", "--registry", "registry.example/"}, `registry "registry.example/" makes no image's name`},
		{[]string{"image", "--version", "v1.2.3", "--registry", "https://registry.example"}, `registry "https://registry.example" makes no image's name`},
		{[]string{"rootfs", "--version", "v1.2.3"}, "rootfs is for one architecture"},
		{[]string{"image", "--source", "/"}, "is module " + source.Module},
		{[]string{"verify", "/nonexistent"}, "checksums.txt: no such file"},
	} {
		c := command()
		c.SetArgs(append(tt.args, "--output", t.TempDir()))
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		assert.ErrorContains(t, c.ExecuteContext(t.Context()), tt.want, "%v", tt.args)
	}
}

// entry is one of an archive.
type entry struct {
	*tar.Header
	data []byte
}

func untar(t *testing.T, r io.Reader) []entry {
	t.Helper()
	var all []entry
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		data, err := io.ReadAll(tr)
		require.NoError(t, err)
		all = append(all, entry{h, data})
	}
}

func untargz(t *testing.T, file string) []entry {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	r, err := gzip.NewReader(f)
	require.NoError(t, err)
	assert.True(t, r.ModTime.IsZero(), "the compressor's header tells a time")
	return untar(t, r)
}

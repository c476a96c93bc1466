// Package release makes a release of the checkout as a tag of it would be, and uses every file of it as its users do. No file and no
// program of the checkout is used besides.
package release

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/e2e/internal/onenode"
	"github.com/meshcni/meshcni/internal/doctest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// registry is what the release is made for. Nothing answers there: its image comes from the release's files.
const registry = "registry.example.com"

// The directories that build makes: the checkout of the tag, the module proxy, and the toolchains.
var (
	top     = proctest.Cache("e2e", "tag")
	sources = filepath.Join(top, "sources")
	dist    = filepath.Join(sources, "dist")
	proxy   = filepath.Join(top, "modules")
	goroots = filepath.Join(top, "go")
)

// modules are the published ones' directories.
var modules = []string{".", "cmd", "migrate"}

func TestMain(m *testing.M) {
	o := onenode.Machine(onenode.Containerd)
	o.Needs = append(o.Needs, netnstest.Need{Name: "krew and validate-krew-manifest (run .ci/tool)", Check: func() error {
		_, err := onenode.Program("krew")
		_, errCheck := onenode.Program("validate-krew-manifest")
		return errors.Join(err, errCheck)
	}})
	o.Build = func() error {
		start := time.Now()
		err := errors.Join(os.RemoveAll(top), image.BuildTool(), tagged(), run(sources, nil, "make", "-s", "release", "REGISTRY="+registry), published())
		fmt.Printf("release: made after %.0fs\n", time.Since(start).Seconds())
		return err
	}
	machine.Main(m, o)
}

// run runs a program. Its output is in the error only.
func run(dir string, env []string, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// version is the checkout's next.
func version() string { return onenode.ChartImage[strings.LastIndex(onenode.ChartImage, ":")+1:] }

// tagged makes a repository of the checkout's files in which its next version is tagged, as docs/releasing.md says.
func tagged() error {
	if err := os.MkdirAll(sources, 0o755); err != nil {
		return err
	}
	const steps = `
git -C "$1" ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
	[ ! -f "$1/$file" ] || printf '%s\0' "$file"
done | tar -C "$1" --null --files-from=- --create | tar -x
tags=$(go -C release run . modules)
git init -q
git add .
git -c user.name=release -c user.email=release@example.com commit -q -m "A release"
for tag in $tags; do git -c tag.gpgSign=false tag "$tag"; done
`
	return run(sources, []string{"GIT_CONFIG_GLOBAL=/dev/null"}, "bash", "-euo", "pipefail", "-c", steps, "sh", proctest.Root())
}

// published has the go command make a module proxy of the tag, and fetches what it takes to use the modules without a network: the
// lowest Go that each names, or the machine's where that cannot be had, and the modules that it requires.
func published() error {
	// The repository's address leads to the tag.
	git := []string{"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=url." + sources + ".insteadOf", "GIT_CONFIG_VALUE_0=https://github.com/meshcni/meshcni",
		"GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*"}
	env := append(git, "GOMODCACHE="+proxy, "GOPROXY=direct", "GOFLAGS=-modcacherw", "GONOSUMDB=*", "GOWORK=off", "GIT_ALLOW_PROTOCOL=file:https")
	if err := os.MkdirAll(goroots, 0o755); err != nil {
		return err
	}
	for _, module := range modules {
		path := filepath.Join("github.com/meshcni/meshcni", module)
		if err := run(top, env, "go", "mod", "download", path+"@"+version()); err != nil {
			return err
		}
		text, err := os.ReadFile(filepath.Join(proctest.Root(), module, "go.mod"))
		if err != nil {
			return err
		}
		lowest := "go" + regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(string(text))[1]
		goroot, err := gorootOf(lowest)
		if err != nil {
			fmt.Printf("release: %s cannot be downloaded: %s takes module %s in its stead\n", lowest, runtime.Version(), path)
			goroot, err = gorootOf("local")
		}
		if err := errors.Join(err, os.Symlink(goroot, filepath.Join(goroots, filepath.Base(path)))); err != nil {
			return err
		}
		if err := run(filepath.Join(proctest.Root(), module), []string{"GOWORK=off"}, "go", "mod", "download"); err != nil {
			return err
		}
	}
	return nil
}

// gorootOf downloads a Go, if it is not there, and returns its directory.
func gorootOf(toolchain string) (string, error) {
	cmd := exec.Command("go", "env", "GOROOT")
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN="+toolchain)
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// release is a test's.
type release struct {
	*onenode.Cluster
	env  []string // of whoever uses it
	used map[string]bool
}

// file is a file of the release, which is used.
func (r *release) file(format string, args ...any) string {
	name := fmt.Sprintf(format, args...)
	r.used[name] = true
	return filepath.Join(dist, name)
}

// do runs a command in the directory with the release's files.
func (r *release) do(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", append([]string{"-c", `exec "$0" "$@"`, name}, args...)...) // found on that PATH
	cmd.Dir, cmd.Env = dist, append(os.Environ(), r.env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s %s\n%s", name, strings.Join(args, " "), out)
	return string(out)
}

func TestRelease(t *testing.T) {
	machine.Require(t)
	start := time.Now()
	c, err := onenode.BootBare(func(what string) { fmt.Printf("release: %s after %.0fs\n", what, time.Since(start).Seconds()) })
	require.NoError(t, err)
	number := version()[1:]
	r := &release{Cluster: c, used: map[string]bool{}}
	krew := filepath.Join(t.TempDir(), "krew")
	bin := t.TempDir()
	for as, program := range map[string]string{"kubectl-krew": "krew", "validate-krew-manifest": "validate-krew-manifest"} {
		path, err := onenode.Program(program)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(bin, as)))
	}
	r.env = append(c.Env(), "KREW_ROOT="+krew)
	for i, v := range r.env {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			r.env[i] = "PATH=" + strings.Join([]string{filepath.Join(krew, "bin"), bin, path}, ":")
		}
	}

	r.do(t, "sha256sum", "--check", "--strict", r.file("checksums.txt"))
	for _, base := range []string{"meshcni_" + number, "kubectl-meshcni_" + number} {
		base += "_linux_" + runtime.GOARCH
		r.programs(t, r.file("%s.tar.gz", base))
		r.bill(t, base+".cdx.json")
	}
	r.bill(t, "meshcni_"+number+"_image_linux_"+runtime.GOARCH+".cdx.json")
	r.do(t, "validate-krew-manifest", "-skip-install", "-manifest", r.file("meshcni.yaml"))
	r.image(t, r.file("meshcni_%s_image_oci.tar", number))
	r.file("meshcni-%s.tgz", number)
	r.file("meshcni_%s_image_linux_%s.docker.tar", number, runtime.GOARCH)
	r.readme(t)
	r.manifests(t, r.file("meshcni_%s_manifests.tar.gz", number))
	r.modules(t)

	files, err := os.ReadDir(dist)
	require.NoError(t, err)
	other := regexp.MustCompile(`_(darwin|windows|linux)_(amd64|arm64)\.`)
	for _, f := range files {
		if m := other.FindStringSubmatch(f.Name()); m != nil && (m[1] != "linux" || m[2] != runtime.GOARCH) {
			continue // nothing here runs it
		}
		assert.True(t, r.used[f.Name()], "%s is for nothing", f.Name())
	}
}

// programs runs each program of an archive.
func (r *release) programs(t *testing.T, archive string) {
	t.Helper()
	dir := t.TempDir()
	r.do(t, "tar", "-xzf", archive, "-C", dir)
	base := strings.TrimSuffix(filepath.Base(archive), ".tar.gz")
	found, err := filepath.Glob(filepath.Join(dir, base, "*meshcni*"))
	require.NoError(t, err)
	require.NotEmpty(t, found, base)
	for _, program := range found {
		assert.Contains(t, r.do(t, program, "--version"), filepath.Base(program)+" "+version()+" (commit ")
	}
}

// bill holds a bill of materials to be of what its name says, and to have more in it than our own modules.
func (r *release) bill(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(r.file("%s", name))
	require.NoError(t, err)
	var bill struct {
		Metadata struct {
			Component struct{ Version string }
		}
		Components []struct{ Name, Version string }
	}
	require.NoError(t, json.Unmarshal(text, &bill))
	assert.Equal(t, version(), bill.Metadata.Component.Version, name)
	assert.True(t, slices.ContainsFunc(bill.Components, func(c struct{ Name, Version string }) bool { return c.Name == "sigs.k8s.io/yaml" }), name)
}

// image puts the image on the node as if it had been pulled by its digest from the registry.
func (r *release) image(t *testing.T, layout string) {
	t.Helper()
	name := registry + "/meshcni/meshcni"
	r.do(t, "ctr", "images", "import", layout)
	digest := regexp.MustCompile(`sha256:[0-9a-f]{64}`).FindString(r.do(t, "ctr", "images", "list", "name=="+name+":"+version()))
	r.do(t, "ctr", "images", "tag", name+":"+version(), name+"@"+digest)
	r.do(t, "ctr", "images", "remove", name+":"+version())
}

// deployment is of a pod in the mesh, whose proxy does nothing.
const deployment = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: cart, namespace: shop}
spec:
  selector: {matchLabels: {app: cart}}
  template:
    metadata:
      labels: {app: cart}
      annotations: {sidecar.istio.io/status: "{}"}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: app, image: %[1]s}
      - {name: istio-proxy, image: %[1]s}
`

// readme does what the README's first commands say, word for word, in the directory with the release's files.
func (r *release) readme(t *testing.T) {
	t.Helper()
	file := filepath.Join(sources, "README.md")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	blocks, err := doctest.Parse(file, string(text))
	require.NoError(t, err)
	dir := t.TempDir()
	files, err := os.ReadDir(dist)
	require.NoError(t, err)
	for _, f := range files {
		require.NoError(t, os.Symlink(filepath.Join(dist, f.Name()), filepath.Join(dir, f.Name())))
	}
	ran := 0
	for _, b := range blocks {
		assert.Empty(t, b.NotRun, "%s: everything in the README is run", b)
		if b.Tag != doctest.Release {
			continue // doctest's own
		}
		if strings.Contains(b.Text, "--namespace shop deployment/cart") {
			manifest := filepath.Join(t.TempDir(), "shop.yaml")
			require.NoError(t, os.WriteFile(manifest, fmt.Appendf(nil, deployment, image.Tool), 0o600))
			r.do(t, "kubectl", "apply", "-f", manifest)
			r.do(t, "kubectl", "--namespace", "shop", "rollout", "status", "deployment/cart", "--timeout=5m")
		}
		b.Text = strings.ReplaceAll(b.Text, "amd64", runtime.GOARCH)
		env := append(slices.Clone(r.env), r.goEnv(t, ".")...)
		ctx, cancel := context.WithTimeout(t.Context(), 2*netnstest.Patience)
		out, err := b.Run(ctx, dir, env...)
		cancel()
		require.NoError(t, err, out)
		ran++
	}
	require.NotZero(t, ran)
	r.do(t, "kubectl", "delete", "namespace", "shop", "--timeout=5m")
	r.do(t, "helm", "uninstall", "meshcni", "--namespace", "meshcni-system", "--wait")
	list, err := os.ReadFile(onenode.ConfList)
	require.NoError(t, err)
	assert.Equal(t, onenode.Network, string(list))
}

// manifests gives the plain manifests of each platform to the API server's schemas.
func (r *release) manifests(t *testing.T, archive string) {
	t.Helper()
	f, err := os.Open(archive)
	require.NoError(t, err)
	defer f.Close()
	gz, err := gzip.NewReader(f)
	require.NoError(t, err)
	found := 0
	for tr := tar.NewReader(gz); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if !strings.HasSuffix(h.Name, ".yaml") {
			continue
		}
		found++
		to := filepath.Join(t.TempDir(), filepath.Base(h.Name))
		text, err := io.ReadAll(tr)
		require.NoError(t, err)
		assert.Contains(t, string(text), registry+"/meshcni/meshcni:"+version()+"@sha256:")
		require.NoError(t, os.WriteFile(to, text, 0o600))
		if !strings.HasSuffix(h.Name, "-openshift.yaml") { // which has kinds of OpenShift's own
			r.do(t, "kubectl", "apply", "--dry-run=client", "--validate=strict", "-f", to)
		}
	}
	assert.Greater(t, found, 5)
}

// goEnv is the environment of somebody who has the lowest Go that a module names, and for modules two proxies of files: the tag's, and
// one of what others have published. Nothing else is reachable from this machine.
func (r *release) goEnv(t *testing.T, module string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE").Output()
	require.NoError(t, err)
	others := filepath.Join(strings.TrimSpace(string(out)), "cache", "download")
	goroot := filepath.Join(goroots, filepath.Base(filepath.Join("github.com/meshcni/meshcni", module)))
	var path string
	for _, v := range r.env {
		if strings.HasPrefix(v, "PATH=") {
			path = strings.Replace(v, "PATH=", "PATH="+goroot+"/bin:", 1)
		}
	}
	return []string{path, "GOROOT=", "GOTOOLCHAIN=local", "GOWORK=off", "GOFLAGS=-modcacherw -trimpath", "GOMODCACHE=" + t.TempDir(), "GONOSUMDB=*", "CGO_ENABLED=0",
		"GOPROXY=file://" + filepath.Join(proxy, "cache", "download") + ",file://" + others}
}

// modules gets each published module into an empty one, and installs a program by version.
func (r *release) modules(t *testing.T) {
	t.Helper()
	for _, module := range modules {
		path := filepath.Join("github.com/meshcni/meshcni", module)
		with := release{env: append(slices.Clone(r.env), r.goEnv(t, module)...), used: r.used}
		empty := t.TempDir()
		with.do(t, "go", "mod", "init", "-C", empty, "example.com/empty")
		with.do(t, "go", "get", "-C", empty, path+"@"+version())
		require.Contains(t, with.do(t, "go", "list", "-C", empty, "-m", path), path+" "+version())
		if module == "." {
			with.do(t, "go", "build", "-C", empty, path+"/redirect", path+"/redirect/ruleset", path+"/redirect/trace") // .ci/lowest builds all
			continue
		}
		bin := t.TempDir()
		with.env = append(with.env, "GOBIN="+bin)
		program := map[string]string{"cmd": "meshcni", "migrate": "kubectl-meshcni-migrate"}[module]
		with.do(t, "go", "install", path+"/"+program+"@"+version())
		assert.Contains(t, with.do(t, filepath.Join(bin, program), "--version"), program+" "+version()+" ")
	}
}

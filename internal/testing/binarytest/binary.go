// Package binarytest builds programs and runs a plugin's binary as a container runtime does.
package binarytest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Command is the import path of the plugin's program.
const Command = "github.com/meshcni/meshcni/cmd/meshcni"

var (
	buildMu   sync.Mutex
	built     = map[string]string{}
	installed = map[string]bool{}
)

// Build compiles a program like a release, static and without symbols, into dir and returns its path. It compiles each
// program once for all tests of a test binary, so dir must outlive them: make it in TestMain.
func Build(dir, importPath string) (string, error) {
	buildMu.Lock()
	defer buildMu.Unlock()
	if path, ok := built[importPath]; ok {
		return path, nil
	}
	path := filepath.Join(dir, filepath.Base(importPath))
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, importPath)
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", importPath, err, out)
	}
	built[importPath] = path
	return path, nil
}

// Installed is as [Build], but the program's file is written as the installer writes it. What the linker writes by mmap is in the page cache in
// single pages, and starts a quarter slower; but of what is written at once larger pieces count as resident, also where a page would do.
func Installed(dir, importPath string) (string, error) {
	linked, err := Build(dir, importPath)
	if err != nil {
		return "", err
	}
	buildMu.Lock()
	defer buildMu.Unlock()
	path := filepath.Join(dir, "installed", filepath.Base(linked))
	if installed[path] {
		return path, nil
	}
	program, err := os.ReadFile(linked)
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, program, 0o755)) //nolint:gosec // a program
	}
	if err != nil {
		return "", fmt.Errorf("install %s: %w", importPath, err)
	}
	installed[path] = true
	return path, nil
}

// Attachment is what a runtime says to a plugin about one interface of one pod.
type Attachment struct {
	Binary                     string   // path of the program
	ContainerID, NetNS, IfName string   // empty: "plugintest", none, "eth0"
	Namespace, Pod, UID        string   // the pod; an empty Pod: none
	Config                     any      // on stdin, as JSON; []byte as it is
	Env                        []string // more of the environment, which is otherwise the CNI variables alone
	Wrap                       []string // a program and its arguments to run the plugin with: strace -f …
}

// Outcome is how a plugin ended.
type Outcome struct {
	Exit           int
	Stdout, Stderr []byte
}

// Failure is the error on stdout.
func (o Outcome) Failure() (code int, message string) {
	var e struct {
		Code         int
		Msg, Details string
	}
	if o.Exit == 0 || json.Unmarshal(o.Stdout, &e) != nil {
		return 0, ""
	}
	return e.Code, e.Msg + "\n" + e.Details
}

// Command returns the process that Run would start. Its output is not connected.
func (a Attachment) Command(ctx context.Context, verb string) (*exec.Cmd, error) {
	config, ok := a.Config.([]byte)
	if !ok {
		var err error
		if config, err = json.Marshal(a.Config); err != nil {
			return nil, fmt.Errorf("encode network configuration: %w", err)
		}
	}
	argv := append(append([]string{}, a.Wrap...), a.Binary)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin = bytes.NewReader(config)
	cmd.Env = append([]string{
		"CNI_COMMAND=" + verb, "CNI_NETNS=" + a.NetNS, "CNI_PATH=" + filepath.Dir(a.Binary),
		"CNI_CONTAINERID=" + cmp.Or(a.ContainerID, "plugintest"), "CNI_IFNAME=" + cmp.Or(a.IfName, "eth0"),
	}, a.Env...)
	if a.Pod != "" {
		cmd.Env = append(cmd.Env, fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_UID=%s", a.Namespace, a.Pod, a.UID))
	}
	return cmd, nil
}

// Run runs the plugin as a runtime does, and waits for it. It fails the test only when there is no process.
func (a Attachment) Run(tb testing.TB, verb string) Outcome {
	tb.Helper()
	cmd, err := a.Command(tb.Context(), verb)
	if err != nil {
		tb.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		tb.Fatal(err)
	}
	return Outcome{cmd.ProcessState.ExitCode(), stdout.Bytes(), stderr.Bytes()}
}

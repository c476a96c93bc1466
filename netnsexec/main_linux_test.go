package netnsexec_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec"
)

// childEnv makes the test binary be a child process instead, to do the one thing that its value names.
const childEnv = "NETNSEXEC_TEST_CHILD"

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		if err := child(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func child(what string) error {
	switch what {
	case "netns":
		link, err := os.Readlink("/proc/self/ns/net")
		fmt.Print(link)
		return err
	case "nsswitch":
		data, err := os.ReadFile("/etc/nsswitch.conf")
		fmt.Printf("%q", data)
		return err
	case "lock": // as iptables does it: create, then lock
		f, err := os.OpenFile(lockPath, os.O_CREATE|os.O_RDONLY, 0o600)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return err
		}
		fmt.Print("locked")
		return nil
	case "run": // what is in /run
		entries, err := os.ReadDir("/run")
		fmt.Print(len(entries))
		return err
	case "mount": // try to show the host a mount
		fmt.Print("mounted")
		return unix.Mount("tmpfs", "/mnt", "tmpfs", 0, "")
	case "sleep": // for longer than any test, once it has said that it runs
		fmt.Print("sleeping")
		time.Sleep(10 * time.Minute)
	case "grandchild": // leaves one behind that holds our output open
		cmd := exec.CommandContext(context.Background(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), childEnv+"=sleep")
		cmd.Stdout = os.Stdout
		if err := cmd.Start(); err != nil {
			return err
		}
		fmt.Println(cmd.Process.Pid)
	case "open1":
		self, err := os.Readlink("/proc/self/ns/net")
		if err != nil {
			return err
		}
		if one, err := os.Readlink("/proc/1/ns/net"); err != nil || one == self {
			return fmt.Errorf("process 1 is in %q, we are in %q: %w", one, self, err)
		}
		_, err = netnsexec.Open("/proc/1/ns/net")
		if !errors.Is(err, netnsexec.ErrHost) {
			return fmt.Errorf("not refused: %w", err)
		}
		fmt.Print("refused: ", netnsexec.ErrHost)
	case "init": // be process 1 of a PID namespace, and run the next child in the network namespace named as argument
		if err := errors.Join(
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("proc", "/proc", "proc", 0, ""),
		); err != nil {
			return err
		}
		ns, err := netnsexec.Open(os.Args[1])
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(context.Background(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), childEnv+"=open1")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		return ns.Run(cmd)
	case "shared": // as on a host whose mounts are shared (systemd): run a sandbox whose child mounts something
		if err := errors.Join(
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), // other tests' mounts stay out
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""),
		); err != nil {
			return err
		}
		ns, err := netnsexec.Open(os.Args[1])
		if err != nil {
			return err
		}
		before, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(context.Background(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), childEnv+"=mount")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := ns.Sandbox().Run(cmd); err != nil {
			return err
		}
		after, err := os.ReadFile("/proc/self/mountinfo")
		// More must not be there. Less may be: a mount point that another test
		// removes takes its mount away in every namespace.
		for mount := range bytes.Lines(after) {
			if !bytes.Contains(before, mount) {
				err = errors.Join(err, fmt.Errorf("a mount that was not there before: %s", mount))
			}
		}
		return err
	case "unprivileged":
		return unprivileged()
	case "fail":
		os.Exit(7)
	}
	return nil
}

// unprivileged is a process without any capability, which has somebody's namespace as descriptor 3.
func unprivileged() error {
	theirs, err := netnsexec.Open("/proc/self/fd/3")
	if err != nil {
		return err
	}
	own, err := netnsexec.Current()
	if err != nil {
		return err
	}
	cmd := func() *exec.Cmd { return exec.CommandContext(context.Background(), "/proc/self/exe", "-test.run=^$") }
	for name, err := range map[string]error{
		"Do": theirs.Do(func() error { return nil }), "Run": theirs.Run(cmd()), "Sandbox": theirs.Sandbox().Run(cmd()),
	} {
		if !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%s: want permission denied, got %w", name, err)
		}
	}
	ran := cmd()
	ran.Env = append(os.Environ(), childEnv+"=netns")
	ran.Stdout = os.Stdout
	return own.Sandbox().Run(ran) // nothing to enter, nobody to hide from: it runs without the sandbox
}

const lockPath = "/run/xtables.lock"

type runner interface{ Run(cmd *exec.Cmd) error }

func childCmd(ctx context.Context, t testing.TB, what string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), childEnv+"="+what)
	return cmd
}

// output runs a child that has to succeed.
func output(t testing.TB, r runner, what string) string {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := childCmd(t.Context(), t, what)
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, r.Run(cmd), "%s: %s", what, &errs)
	return out.String()
}

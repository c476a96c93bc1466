package proctest_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// abandon makes the test's program start another and then die.
const abandon = "PROCTEST_ABANDON"

// portsOf makes the test's program take ports, as many as make it all but certain that two processes would have one in common by chance.
const (
	portsOf = "PROCTEST_PORTS"
	takes   = 400
)

func TestMain(m *testing.M) {
	if os.Getenv(abandon) != "" {
		p, err := proctest.Start(proctest.Options{}, "sleep", "1000")
		if err != nil {
			panic(err)
		}
		fmt.Println(p.Pid())
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	if os.Getenv(portsOf) != "" {
		for range takes {
			port, err := proctest.FreePort()
			if err != nil {
				panic(err)
			}
			fmt.Println(port)
		}
		fmt.Println("taken")
		_, _ = os.Stdin.Read(make([]byte, 1)) // the end
	}
	os.Exit(m.Run())
}

// TestFreePort: a port is given once, whoever asks, and is none that the kernel gives away by itself.
func TestFreePort(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), portsOf+"=1")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	given := map[string]bool{}
	for lines := bufio.NewScanner(stdout); lines.Scan() && lines.Text() != "taken"; {
		given[lines.Text()] = true
	}
	require.Len(t, given, takes)
	for range takes {
		port, err := proctest.FreePort()
		require.NoError(t, err)
		assert.False(t, given[strconv.Itoa(port)], "%d is given twice", port)
		assert.Less(t, port, 32768, "from there on, Linux gives ports to anybody")
		given[strconv.Itoa(port)] = true
	}
	require.NoError(t, stdin.Close())
	require.NoError(t, cmd.Wait())
}

// TestEndsWithTheTest: a test that is killed leaves no programs.
func TestEndsWithTheTest(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), abandon+"=1")
	out, err := cmd.Output()
	require.ErrorContains(t, err, "killed")
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	require.NoError(t, err)
	require.Eventually(t, func() bool { // gone, or nobody has taken its exit code
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	}, netnstest.Patience, 10*time.Millisecond)
}

func TestStop(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, script, want string }{
		{"willing", `trap "exit 0" TERM; echo up; while :; do sleep 0.01; done`, ""},
		{"failing", `trap "exit 3" TERM; echo up; while :; do sleep 0.01; done`, "exit status 3"},
		{"unwilling", `trap "" TERM; echo up; while :; do sleep 0.01; done`, "did not end within"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, err := proctest.Start(proctest.Options{Dir: t.TempDir(), Name: c.name}, "sh", "-c", c.script)
			require.NoError(t, err)
			require.NoError(t, p.WaitFor(netnstest.Patience, func() error {
				if p.Log() != "up\n" {
					return errors.New("not up")
				}
				return nil
			}))
			assert.True(t, p.Running())
			err = p.Stop(2 * time.Second)
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.want)
			}
			assert.False(t, p.Running())
		})
	}
}

// TestWaitFor: of what ended before it was ready, the end of its output is told.
func TestWaitFor(t *testing.T) {
	t.Parallel()
	p, err := proctest.Start(proctest.Options{Dir: t.TempDir(), Env: []string{"WHY=no such thing"}}, "sh", "-c", `echo "$WHY"; exit 7`)
	require.NoError(t, err)
	err = p.WaitFor(netnstest.Patience, func() error { return errors.New("no answer") })
	require.ErrorContains(t, err, "exit status 7")
	require.ErrorContains(t, err, "no answer")
	require.ErrorContains(t, err, "no such thing")
	_, err = proctest.Start(proctest.Options{}, "/there/is/none")
	require.ErrorContains(t, err, "start none")
}

func TestInANamespace(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.Binary("nsenter"))
	ns := netnstest.New(t)
	out, err := proctest.Command(ns.Path(), "readlink", "/proc/self/ns/net").Output()
	require.NoError(t, err)
	var st syscall.Stat_t
	require.NoError(t, syscall.Fstat(ns.Fd(), &st))
	assert.Equal(t, fmt.Sprintf("net:[%d]\n", st.Ino), string(out))
}

package kubectlcmd

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/testing/longtest"
)

// fleetRun is what one run of the program took.
type fleetRun struct {
	cpu time.Duration // of its own, on all cores
	mib float64       // resident memory at its most
}

// startFleet starts the API server of so many nodes, in a process of its own: what a parent has resident would count as the program's.
func startFleet(tb testing.TB, nodes int) (kubeconfig string) {
	tb.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", fleetNodes, nodes))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(tb, err)
	out, err := cmd.StdoutPipe()
	require.NoError(tb, err)
	require.NoError(tb, cmd.Start())
	tb.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	var text strings.Builder
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadString('\n')
		require.NoError(tb, err)
		if line == "---\n" {
			break
		}
		text.WriteString(line)
	}
	kubeconfig = filepath.Join(tb.TempDir(), "kubeconfig")
	require.NoError(tb, os.WriteFile(kubeconfig, []byte(text.String()), 0o600))
	return kubeconfig
}

// buildProgram builds kubectl-meshcni as a release does.
func buildProgram(tb testing.TB) string {
	tb.Helper()
	program := filepath.Join(tb.TempDir(), "kubectl-meshcni")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", program, "../kubectl-meshcni")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(tb, err, "%s", out)
	return program
}

// runFleet runs the program once. It must find all of the fleet to be well.
func runFleet(tb testing.TB, program, kubeconfig, command string, nodes int) fleetRun {
	tb.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(program, "--kubeconfig", kubeconfig, command)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	require.False(tb, errors.As(err, &exit), "%s\n%s", &errs, out.String()[:min(out.Len(), 4000)])
	require.NoError(tb, err)
	all := map[string]string{
		"status": fmt.Sprintf("%d nodes %d ready", nodes, nodes),
		"check":  fmt.Sprintf("%d nodes and %d pods were looked at: 0 findings", nodes, nodes*fleetPods),
	}[command]
	require.Contains(tb, strings.Join(strings.Fields(out.String()), " "), all)
	return fleetRun{cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), mib: float64(cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss) / 1024}
}

// maxFleetMiB bounds the resident memory of the program, whatever the cluster's size. docs/performance.md has what it takes.
const maxFleetMiB = 256

// TestFleetMemory: what the program needs does not grow with the cluster: four times the nodes and pods, or ten, take not even twice the memory.
// Fifty agents are asked at a time, and three pages of pods are kept; when garbage is collected decides about the rest.
func TestFleetMemory(t *testing.T) {
	program := buildProgram(t)
	nodes := longtest.Rounds(200, 500)
	small, large := startFleet(t, 50), startFleet(t, nodes)
	for _, command := range []string{"status", "check"} {
		few, many := runFleet(t, program, small, command, 50), runFleet(t, program, large, command, nodes)
		t.Logf("%s: %.0f MiB with 50 nodes, %.0f MiB with %d", command, few.mib, many.mib, nodes)
		assert.Less(t, many.mib, 2*few.mib, command)
		assert.Less(t, many.mib, float64(maxFleetMiB), command)
	}
}

// BenchmarkFleet runs the program against 500 nodes with 110 pods each.
func BenchmarkFleet(b *testing.B) {
	program := buildProgram(b)
	kubeconfig := startFleet(b, 500)
	for _, command := range []string{"status", "check"} {
		b.Run(command, func(b *testing.B) {
			var mib, cpu float64
			for b.Loop() {
				r := runFleet(b, program, kubeconfig, command, 500)
				mib, cpu = max(mib, r.mib), cpu+r.cpu.Seconds()
			}
			b.ReportMetric(mib, "MiB")
			b.ReportMetric(cpu/float64(b.N), "cpu-s/op")
		})
	}
}

package kubectlcmd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// refused is what the chart's default agent says: it may not enter pods.
const refused = "enter: operation not permitted"

// TestEnter: where the agent may not enter pods, or does not answer, a pod on the node reads the rules, if that is asked for.
func TestEnter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	state := &status.Pod{ID: status.ID{Namespace: "shop", Name: "cart"}, State: status.StateCaptured, Reason: "recorded"}
	answer := agentapi.Pod{State: state, LiveError: refused, Records: []attachment.Record{{Selected: true, By: "ADD"}}}
	base := kubectltest.Sound("a")
	w.Node(t, "a", func(path string) (any, error) {
		if path == agentapi.NodePath {
			return base(path)
		}
		return answer, nil
	})
	w.Node(t, "b", kubectltest.Silent)
	cart := w.MeshPod(t, "shop", "cart", "a")
	w.MeshPod(t, "shop", "far", "b", func(p *corev1.Pod) { p.Annotations[corev1.MirrorPodAnnotationKey] = staticUID })
	w.MeshPod(t, "shop", "done", "a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	w.MeshPod(t, "shop", "hosts", "a", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	k := kubectltest.NewKubelet(t, w.World)
	rule := ruleset.LiveRule{Backend: ruleset.BackendIptablesNFT, Table: "nat", Chain: "OUTPUT", Position: 1, Text: "-j ISTIO_OUTPUT", Ours: true, Counters: &ruleset.Counters{Packets: 12, Bytes: 700}}
	record := attachment.Record{Selected: true, By: "ADD", Reason: "selected", Dialect: "istio"}
	static := record
	static.Pod = status.ID{Namespace: "shop", Name: "far", UID: staticUID}
	theirs := agentapi.Pod{Records: []attachment.Record{static}, Live: []ruleset.LiveRule{rule}}
	full := agentapi.Pod{Records: []attachment.Record{record}, Live: []ruleset.LiveRule{rule}}
	k.Next(kubectltest.Looks(t, map[string]agentapi.Pod{string(cart.UID): full, staticUID: theirs}))

	code, _, errs := w.run(t, "show", "-n", "shop", "cart")
	assert.Equal(t, exitWrong, code)
	assert.Contains(t, errs, "are not known: "+refused+" (--enter reads them, by a short-lived pod on the node)\n")
	code, out, _ := w.run(t, "explain", "-n", "shop", "cart")
	assert.Equal(t, exitOK, code, "as its record has it")
	assert.Contains(t, out, "live rules: not known: "+refused+"\n  (--enter reads them, by a short-lived pod on the node; ")
	assert.Empty(t, k.Made, "nobody has asked for a pod")

	code, out, errs = w.run(t, "show", "-n", "shop", "cart", "--enter")
	assert.Equal(t, exitOK, code, errs)
	assert.Regexp(t, `OUTPUT +1 +12 +700 +-j ISTIO_OUTPUT`, out)
	pod := k.One(t)
	assert.Equal(t, "making pod meshcni-system/"+pod.Name+" on node a to read the live rules of pod shop/cart\n", errs)
	assert.Equal(t, []string{"look", "--host-root=/proc/1/root", "--run-dir=/host/run/agent", "--uid=" + string(cart.UID)}, pod.Spec.Containers[0].Args)
	assert.True(t, pod.Spec.HostPID)
	assert.Equal(t, "/var/run/meshcni", pod.Spec.Volumes[0].HostPath.Path)
	assert.True(t, pod.Spec.Containers[0].VolumeMounts[0].ReadOnly)

	k.Next(k.Runs)
	code, out, _ = w.run(t, "explain", "-n", "shop", "cart", "--enter")
	assert.Equal(t, exitOK, code)
	assert.Contains(t, out, "  now: captured: recorded\n", "as the agent has it")
	assert.Contains(t, out, "  live rules: 1 of the mesh, 0 others\n")
	k.Next(kubectltest.Looks(t, map[string]agentapi.Pod{string(cart.UID): {Records: full.Records, Differences: gone, Lost: gone}, staticUID: theirs}))
	code, out, _ = w.run(t, "explain", "-n", "shop", "cart", "--enter")
	assert.Equal(t, exitWrong, code)
	assert.Contains(t, out, "  LOST since ADD: ipv4 nat/OUTPUT:1 missing: -j X\n")
	past := dialect.Bypass{Code: dialect.BypassSandboxed, Interface: "eth0", HandedTo: "tap0, by tc"}
	k.Next(kubectltest.Looks(t, map[string]agentapi.Pod{string(cart.UID): {Records: full.Records, Live: full.Live, Differences: gone, Bypasses: []dialect.Bypass{past}, BypassError: "too many"}, staticUID: theirs}))
	for _, output := range []string{"text", "json"} {
		code, out, _ = w.run(t, "show", "-n", "shop", "cart", "--enter", "-o", output)
		assert.Equal(t, exitOK, code)
		for _, finding := range []string{"sandboxed", "the pod bypasses the mesh: what arrives at its interface", "missing", "ipv4 nat/OUTPUT:1 missing: -j X", "cannot tell: too many"} {
			assert.Contains(t, out, finding, output)
		}
	}
	k.Next(kubectltest.Looks(t, map[string]agentapi.Pod{string(cart.UID): full, staticUID: theirs}))

	t.Run("the agent does not answer", func(t *testing.T) {
		code, out, errs := w.run(t, "explain", "-n", "shop", "far", "--config", "none", "--enter")
		assert.Equal(t, exitUnknown, code, errs)
		assert.Contains(t, out, "  unknown: ask agent meshcni-system/meshcni-node-b: connection refused\n")
		assert.Contains(t, out, "  live rules: 1 of the mesh, 0 others\n")
		assert.NotContains(t, out, "  now: ")
		code, out, errs = w.run(t, "show", "-n", "shop", "far", "--enter", "-o", "json")
		assert.Equal(t, exitOK, code, errs)
		assert.Len(t, kubectltest.Decode[[]ruleset.LiveRule](t, out), 1)
		k.Next(func(*corev1.Pod) (string, corev1.PodStatus) {
			return "", corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfpods"}
		})
		code, out, _ = w.run(t, "explain", "-n", "shop", "far", "--config", "none", "--enter")
		assert.Equal(t, exitUnknown, code)
		assert.Regexp(t, `  unknown: ask agent meshcni-system/meshcni-node-b: connection refused; --enter: pod \S+ on node b: it has failed; OutOfpods\n`, out)
		assert.NotContains(t, out, "there is no record", "nobody knows")
	})
	t.Run("failures", func(t *testing.T) {
		for _, log := range []string{"", "{}\n", "no such command\n"} {
			k.Next(func(*corev1.Pod) (string, corev1.PodStatus) {
				return log, corev1.PodStatus{Phase: corev1.PodSucceeded}
			})
			code, out, errs := w.run(t, "show", "-n", "shop", "cart", "--enter")
			assert.Equal(t, exitWrong, code)
			assert.Empty(t, out)
			assert.Contains(t, errs, refused+"; --enter: ", log)
			assert.Contains(t, errs, "the pod on node a has written", log)
		}
		k.Next(kubectltest.Looks(t, nil))
		code, _, errs := w.run(t, "show", "-n", "shop", "cart", "--enter")
		assert.Equal(t, exitWrong, code)
		assert.Contains(t, errs, "are not known: no process of the pod runs\n")
		k.Next(nil)
		for _, name := range []string{"done", "hosts"} {
			code, _, errs = w.run(t, "show", "-n", "shop", name, "--enter")
			assert.Equal(t, exitWrong, code)
			assert.NotContains(t, errs, "making pod", name)
		}
		for _, args := range [][]string{{"show", "cart", "--enter", "--watch"}, {"show", "cart", "--image", "i"}, {"explain", "cart", "--image", "i"}, {"explain", "-l", "app=cart", "--enter"}} {
			code, _, errs = w.run(t, args...)
			assert.Equal(t, exitUsage, code, errs)
		}
		assert.Empty(t, k.Made)
	})
	t.Run("interrupted", func(t *testing.T) { enterInterrupted(t, k) })
	t.Run("many pods", func(t *testing.T) { enterMany(t, k) })
}

// enterMany: what one pod has to write is bounded, and if it is too long all the same, two pods write it.
func enterMany(t *testing.T, k *kubectltest.Kubelet) {
	var uids []string
	for i := range looksAtOnce + 10 {
		uids = append(uids, fmt.Sprintf("u%d", i))
	}
	var mu sync.Mutex
	var counts []int
	k.Next(func(pod *corev1.Pod) (string, corev1.PodStatus) {
		all := kubectltest.UIDs(pod)
		mu.Lock()
		counts = append(counts, len(all))
		mu.Unlock()
		known := map[string]agentapi.Pod{}
		for _, uid := range all {
			known[uid] = agentapi.Pod{LiveError: strings.Repeat("x", agentapi.MaxAnswer/40)}
		}
		return kubectltest.Looks(t, known)(pod)
	})
	c := &cluster{Program: Program{Identity: own, Stderr: &output{}}, client: k.Clientset(t), finder: agents.Finder{Client: k.Clientset(t), Identity: own}}
	found, err := c.lookInto(t.Context(), "a", "60 pods", "", uids)
	assert.NoError(t, errors.Join(err, c.left))
	assert.Len(t, found, len(uids))
	assert.Equal(t, []int{50, 25, 25, 10}, counts)
	assert.Empty(t, k.Left(t))

	k.Next(func(pod *corev1.Pod) (string, corev1.PodStatus) {
		return strings.Repeat("x", agentapi.MaxAnswer+1), corev1.PodStatus{Phase: corev1.PodSucceeded}
	})
	_, err = c.lookInto(t.Context(), "a", "one pod", "", uids[:1])
	assert.ErrorIs(t, err, errLongLog)
}

// enterInterrupted: the pod is deleted; if the user does not wait for that, it is named.
func enterInterrupted(t *testing.T, k *kubectltest.Kubelet) {
	for _, name := range []string{"show", "explain"} {
		ctx, interrupt := context.WithCancelCause(t.Context())
		again, giveUp := context.WithCancelCause(t.Context())
		ctx = cli.WithAgain(ctx, again)
		run := func() (code int, errs string) {
			var out, text output
			p := Program{Stdout: &out, Stderr: &text, ask: func(*rest.Config) asker { return &world{World: k.World} }}
			code = p.Main(ctx, []string{"--kubeconfig", k.Kubeconfig, name, "-n", "shop", "cart", "--enter"})
			assert.Empty(t, out.String())
			return code, text.String()
		}
		k.Next(func(*corev1.Pod) (string, corev1.PodStatus) {
			interrupt(errors.New("interrupted"))
			return "", corev1.PodStatus{Phase: corev1.PodRunning}
		})
		code, errs := run()
		assert.Equal(t, exitWrong, code, errs)
		assert.Contains(t, errs, "kubectl-meshcni: interrupted\n")
		assert.NotContains(t, errs, "left behind")
		assert.Empty(t, k.Left(t))

		ctx, interrupt = context.WithCancelCause(t.Context())
		ctx = cli.WithAgain(ctx, again)
		k.Next(func(*corev1.Pod) (string, corev1.PodStatus) {
			giveUp(errors.New("interrupted again"))
			interrupt(errors.New("interrupted"))
			return "", corev1.PodStatus{Phase: corev1.PodRunning}
		})
		code, errs = run()
		assert.Equal(t, exitWrong, code, errs)
		pod := k.One(t)
		assert.Equal(t, 1, strings.Count(errs, "kubectl-meshcni: left behind: pod meshcni-system/"+pod.Name+": interrupted again; "), errs)
		assert.Contains(t, errs, ": kubectl delete pod --namespace meshcni-system "+pod.Name+"\n")
		k.Remove(t, pod.Namespace, pod.Name)
	}
}

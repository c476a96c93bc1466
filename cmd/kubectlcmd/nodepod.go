package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// errand is a command of the agent's image that a short-lived pod runs on one node.
type errand struct {
	Node string
	// What is said to the user of the pod's purpose, such as "to read the live rules of pod shop/cart".
	What string
	// Args are the command and its flags. What the command writes to standard output is the answer. It writes to standard error
	// only if it fails, because a pod's log does not tell them apart. Nothing of Args and Env is secret: whoever may read pods
	// sees it.
	Args []string
	Env  map[string]string
	// Mounts are the host's directories that it needs. RunDirAt is where it has the agent's run directory too, to read; on a node
	// without an agent there is none. Empty: it needs none.
	Mounts   []hostDir
	RunDirAt string
	// Enters: it enters other pods' network namespaces. Then the pod sees the host's processes, and has the capabilities of an
	// agent that verifies rules.
	Enters bool
	// Capabilities are those besides.
	Capabilities []corev1.Capability
	// Image is another image with the same entry point. Empty: that of the agent's pod on the node.
	Image string
	// Timeout bounds all but the deletion. Zero is two minutes.
	Timeout time.Duration
}

// hostDir is a directory of the host, which is there.
type hostDir struct {
	Path string
	// At is its path in the pod. Empty: at Path.
	At string
	// Writable: the pod may write to it.
	Writable bool
}

const (
	// errandLabel is on every pod of an errand.
	errandLabel = "meshcni.io/errand"
	// errandTime bounds an errand whose image may have to be pulled first.
	errandTime = 2 * time.Minute
	// errandGrace bounds the time that a command has to end when its pod is deleted.
	errandGrace = 5 * time.Second
)

// entering are the capabilities that the chart gives an agent that enters pods, whatever the backend.
var entering = []corev1.Capability{"NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE"}

// leftError names the pods that a command has made and could not delete.
type leftError struct {
	namespace, pod string
	ends           time.Duration
	err            error
}

func (e *leftError) Error() string {
	return fmt.Sprintf("left behind: pod %[1]s/%[2]s: %[3]v; it ends by itself within %[4]s, and this deletes it: kubectl delete pod --namespace %[1]s %[2]s",
		e.namespace, e.pod, e.err, e.ends)
}

func (e *leftError) Unwrap() error { return e.err }

// errand runs e and returns what it has printed. Its pod is made with the caller's rights, and deleted whatever happens, also after an
// interrupt; only a second one ends the deletion. A *leftError in the error names a pod that could not be deleted. If it is
// all that went wrong, the answer is there too.
func (c *cluster) errand(ctx context.Context, e errand) ([]byte, error) {
	if e.Timeout <= 0 {
		e.Timeout = errandTime
	}
	ctx, end := context.WithTimeoutCause(ctx, e.Timeout, fmt.Errorf("not within %s", e.Timeout))
	defer end()
	want, err := c.errandPod(ctx, e)
	if err != nil {
		return nil, fmt.Errorf("a pod on node %s: %w", e.Node, err)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	visible.To(c.Stderr).Printf("making pod %s/%s on node %s %s\n", want.Namespace, want.Name, e.Node, e.What)
	once, stop := written(ctx)
	made, err := c.client.CoreV1().Pods(want.Namespace).Create(once, want, metav1.CreateOptions{})
	if err != nil && once.Err() != nil {
		err = context.Cause(once)
	}
	stop()
	if err != nil && !lost(err) {
		return nil, fmt.Errorf("make pod %s/%s on node %s: %w", want.Namespace, want.Name, e.Node, err)
	}
	var out []byte
	if err != nil {
		made = want // it may be there
	} else if err = c.ended(ctx, made); err == nil {
		out, err = c.podLog(ctx, made)
	}
	if err != nil {
		err = fmt.Errorf("pod %s/%s on node %s: %w", want.Namespace, want.Name, e.Node, err)
	}
	return out, errors.Join(err, c.deletePod(ctx, made))
}

// lost reports whether nothing says if a request was carried out.
func lost(err error) bool {
	var refused apierrors.APIStatus
	return !errors.As(err, &refused) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsInternalError(err)
}

// hopeless are the reasons for which a container waits that no waiting helps against.
var hopeless = []string{"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError"}

// ended waits until the pod's container has ended well. The error says what is known of why it has not.
func (c *cluster) ended(ctx context.Context, pod *corev1.Pod) error {
	var last error
	for {
		now, err := c.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID:
			return errors.New("somebody has deleted it")
		case apierrors.IsForbidden(err):
			return err
		case err != nil:
			last = err
		case now.Status.Phase == corev1.PodSucceeded:
			return nil
		case now.Status.Phase == corev1.PodFailed:
			return c.why(ctx, now, errors.New("it has failed"))
		default:
			pod, last = now, nil
			for _, s := range now.Status.ContainerStatuses {
				if w := s.State.Waiting; w != nil && slices.Contains(hopeless, w.Reason) {
					return c.why(ctx, now, errors.New("it does not start"))
				}
			}
		}
		switch err := wait(ctx, askEvery); {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return c.why(ctx, pod, errors.Join(fmt.Errorf("it has not ended: %w", err), last))
		case err != nil:
			return err // the user does not wait for what the cluster says of it
		}
	}
}

var errLongLog = fmt.Errorf("its log is longer than %d MiB", agentapi.MaxAnswer>>20)

// podLog returns what a pod that has ended has written.
func (c *cluster) podLog(ctx context.Context, pod *corev1.Pod) ([]byte, error) {
	log, err := c.client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: pod.Spec.Containers[0].Name}).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("read its log: %w", err)
	}
	defer func() { _ = log.Close() }()
	text, err := io.ReadAll(io.LimitReader(log, agentapi.MaxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read its log: %w", err)
	case len(text) > agentapi.MaxAnswer:
		return nil, errLongLog
	}
	return text, nil
}

// deletePod deletes a pod of an errand. It tries again until the time is up or the user interrupts for the second time; then the error
// is a *leftError.
func (c *cluster) deletePod(ctx context.Context, pod *corev1.Pod) error {
	ctx, stop := written(ctx)
	defer stop()
	var o metav1.DeleteOptions
	if pod.UID != "" {
		o.Preconditions = &metav1.Preconditions{UID: &pod.UID}
	}
	for {
		err := c.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, o)
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // a conflict: it is another pod by now
			return nil
		}
		if apierrors.IsForbidden(err) || wait(ctx, askEvery) != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return &leftError{pod.Namespace, pod.Name, time.Duration(*pod.Spec.ActiveDeadlineSeconds) * time.Second, err}
		}
	}
}

// errandPod is the pod of an errand: as the agents' where the node decides whether a pod may run, with less where the pod's rights
// are concerned. What it has of them is of their DaemonSet's template.
func (c *cluster) errandPod(ctx context.Context, e errand) (*corev1.Pod, error) {
	agent, err := c.agentOn(ctx, e.Node)
	if err != nil && !errors.Is(err, errNoAgent) {
		return nil, err
	}
	no, yes, root := false, true, int64(0)
	seconds, grace := int64((e.Timeout + time.Minute).Seconds()), int64(errandGrace.Seconds())
	name := "meshcni-errand-" + rand.String(8)
	run := corev1.Container{
		Name: "errand", Image: e.Image, ImagePullPolicy: corev1.PullIfNotPresent, Args: literals(e.Args), TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: &root, RunAsGroup: &root, RunAsNonRoot: &no, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: slices.Clone(e.Capabilities)},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.agentNamespace, Name: name,
			// No mesh takes the pod: each goes by one of these.
			Labels:      map[string]string{errandLabel: "true", "sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none", "kuma.io/sidecar-injection": "disabled"},
			Annotations: map[string]string{"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled", "kuma.io/sidecar-injection": "disabled", "consul.hashicorp.com/connect-inject": "false"},
		},
		Spec: corev1.PodSpec{
			// Without a scheduler and on the host's network, it starts also where others do not.
			NodeName: e.Node, HostNetwork: true, HostPID: e.Enters, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			RestartPolicy: corev1.RestartPolicyNever, ActiveDeadlineSeconds: &seconds, TerminationGracePeriodSeconds: &grace,
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
		},
	}
	switch {
	case err == nil:
		t := agent.template
		pod.Namespace, pod.Spec.ServiceAccountName, pod.Spec.ImagePullSecrets = agent.Namespace, t.ServiceAccountName, t.ImagePullSecrets
		asAgent(&run, agentContainer(t))
		if e.RunDirAt != "" {
			e.Mounts = append(slices.Clone(e.Mounts), hostDir{Path: onHost(t, runDir(agentContainer(t))), At: e.RunDirAt})
		}
	case e.Image == "":
		return nil, fmt.Errorf("%w whose image could be used: --image names one", errNoAgent)
	case pod.Namespace == "":
		return nil, fmt.Errorf("%w in whose namespace it could be: --agent-namespace names one", errNoAgent)
	}
	for name, value := range e.Env {
		run.Env = append(run.Env, corev1.EnvVar{Name: name, Value: literal(value)})
	}
	slices.SortFunc(run.Env, func(a, b corev1.EnvVar) int { return strings.Compare(a.Name, b.Name) })
	mount(pod, &run, e.Mounts)
	if e.Enters {
		run.SecurityContext.Capabilities.Add = append(run.SecurityContext.Capabilities.Add, entering...)
		if err := c.unconfined(pod, &run); err != nil {
			return nil, err
		}
	}
	pod.Spec.Containers = []corev1.Container{run}
	return pod, nil
}

// mount gives a container directories of the host.
func mount(pod *corev1.Pod, run *corev1.Container, dirs []hostDir) {
	for i, d := range dirs {
		volume, kind := fmt.Sprintf("host-%d", i), corev1.HostPathDirectory
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: d.Path, Type: &kind}}})
		run.VolumeMounts = append(run.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: cmp.Or(d.At, d.Path), ReadOnly: !d.Writable})
	}
}

// asAgent gives a container the program of the agent's, and what lets it run on the agent's nodes. An image that is set stays.
func asAgent(run, agent *corev1.Container) {
	if run.Image == "" {
		run.Image, run.Command, run.ImagePullPolicy = agent.Image, agent.Command, agent.ImagePullPolicy
	}
	if s := agent.SecurityContext; s != nil {
		run.SecurityContext.SELinuxOptions = s.SELinuxOptions
		if s.SeccompProfile != nil {
			run.SecurityContext.SeccompProfile = s.SeccompProfile
		}
	}
}

// agentContainer is that of an agent's pod that has the agent: the first if no probe tells.
func agentContainer(agent *corev1.PodSpec) *corev1.Container {
	if c := probed(agent); c != nil {
		return c
	}
	return &agent.Containers[0] // the API server takes no pod without one
}

// runDir is the agent's run directory, as the agent has it.
func runDir(agent *corev1.Container) string {
	for _, arg := range slices.Backward(agent.Args) {
		if dir, ok := strings.CutPrefix(arg, "--run-dir="); ok {
			return dir
		}
	}
	for _, e := range agent.Env {
		if e.Name == "MESHCNI_RUN_DIR" && e.Value != "" {
			return e.Value
		}
	}
	return netconf.DefaultRunDir
}

// unconfined takes a container out of AppArmor's profile, which would keep it from entering pods. Since 1.30 that is a field; before, an
// annotation.
func (c *cluster) unconfined(pod *corev1.Pod, run *corev1.Container) error {
	server, err := c.client.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("ask for the API server's version: %w", err)
	}
	var minor int
	_, _ = fmt.Sscanf(server.Minor, "%d", &minor) // it may be 29+
	if server.Major == "1" && minor < 30 {
		pod.Annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+run.Name] = corev1.DeprecatedAppArmorBetaProfileNameUnconfined
		return nil
	}
	run.SecurityContext.AppArmorProfile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	return nil
}

// literal makes a text mean itself where $(NAME) is a reference.
func literal(s string) string { return strings.ReplaceAll(s, "$", "$$") }

func literals(all []string) (out []string) {
	for _, s := range all {
		out = append(out, literal(s))
	}
	return out
}

// written makes a context for a request that goes on when the caller is interrupted, but not when it is for the second time.
func written(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(cli.Again(ctx), oneWrite, fmt.Errorf("no answer within %s", oneWrite))
}

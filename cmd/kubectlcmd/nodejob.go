package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

const (
	// jobTime bounds a job whose image may have to be pulled first.
	jobTime = 2 * time.Minute
	// jobGrace bounds the time that a command has to end when its pod is deleted.
	jobGrace = 5 * time.Second
)

// entering are the capabilities that the chart gives an agent that enters pods, whatever the backend.
var entering = []corev1.Capability{"NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE"}

// runJob runs j and returns what it has printed. Its pod is made with the caller's rights, and deleted whatever happens, also after an
// interrupt; only a second one ends the deletion. A pod that stays is no error here: the program's end reports it.
func (c *cluster) runJob(ctx context.Context, j kubectl.Job) (out []byte, err error) {
	j.Timeout = cmp.Or(j.Timeout, jobTime)
	ctx, end := context.WithTimeoutCause(ctx, j.Timeout, fmt.Errorf("not within %s", j.Timeout))
	defer end()
	want, err := c.jobPod(ctx, j)
	if err != nil {
		return nil, fmt.Errorf("a pod on node %s: %w", j.Node, err)
	}
	visible.To(c.Stderr).Printf("making pod %s/%s on node %s %s\n", want.Namespace, want.Name, j.Node, j.What)
	made, err := c.create(ctx, want)
	switch {
	case err != nil && !lost(err):
		return nil, err
	case err != nil:
		made = want // it may be there
	default:
		if _, err = c.await(ctx, made, "it has not ended", succeeded); err == nil {
			out, err = c.podLog(ctx, made)
		}
		if err != nil {
			err = fmt.Errorf("pod %s/%s on node %s: %w", want.Namespace, want.Name, j.Node, err)
		}
	}
	c.deletePod(ctx, made)
	return out, err
}

func succeeded(pod *corev1.Pod) (bool, error) {
	return pod.Status.Phase == corev1.PodSucceeded, nil
}

// lost reports whether nothing says if a request was carried out.
func lost(err error) bool {
	var refused apierrors.APIStatus
	return !errors.As(err, &refused) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsInternalError(err)
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

// deletePod deletes a pod. It tries again until the time is up or the user interrupts for the second time; then the pod is left behind.
func (c *cluster) deletePod(ctx context.Context, pod *corev1.Pod) {
	ctx, stop := uninterrupted(ctx)
	defer stop()
	var o metav1.DeleteOptions
	if pod.UID != "" {
		o.Preconditions = &metav1.Preconditions{UID: &pod.UID}
	}
	for {
		err := c.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, o)
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // a conflict: it is another pod by now
			return
		}
		if apierrors.IsForbidden(err) || kubectl.Wait(ctx, askEvery) != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			c.leave(fmt.Errorf("left behind: pod %[1]s/%[2]s: %[3]w; it ends by itself within %[4]s, and this deletes it: kubectl delete pod --namespace %[1]s %[2]s",
				pod.Namespace, pod.Name, err, time.Duration(*pod.Spec.ActiveDeadlineSeconds)*time.Second))
			return
		}
	}
}

// jobPod is the pod of a job: as the agents' where the node decides whether a pod may run, with less where the pod's rights
// are concerned. What it has of them is of their DaemonSet's template.
func (c *cluster) jobPod(ctx context.Context, j kubectl.Job) (*corev1.Pod, error) {
	agent, err := c.agentOn(ctx, j.Node)
	if err != nil && !errors.Is(err, agents.ErrNoAgent) {
		return nil, err
	}
	run := shortLivedContainer("job", image{name: j.Image}, 0)
	for _, arg := range j.Args {
		run.Args = append(run.Args, strings.ReplaceAll(arg, "$", "$$")) // $(NAME) would be a reference
	}
	pod := shortLivedPod(c.finder.Namespace, c.Identity.Program("job-")+rand.String(8), j.Node, j.Timeout+time.Minute, jobGrace)
	// No mesh takes the pod: each goes by one of these.
	pod.Labels = map[string]string{c.Identity.Key(kubectl.JobLabel): "true", "sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none", "kuma.io/sidecar-injection": "disabled"}
	pod.Annotations = map[string]string{"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled", "kuma.io/sidecar-injection": "disabled", "consul.hashicorp.com/connect-inject": "false"}
	pod.Spec.HostNetwork, pod.Spec.HostPID = true, j.Enters // so it starts also where others do not
	switch {
	case err == nil:
		t := agent.Template()
		pod.Namespace, pod.Spec.ServiceAccountName, pod.Spec.ImagePullSecrets = agent.Namespace, t.ServiceAccountName, t.ImagePullSecrets
		asAgent(&run, agentContainer(t))
		if j.RunDirAt != "" {
			j.Mounts = append(slices.Clone(j.Mounts), kubectl.HostDir{Path: onHost(t, runDir(c.Identity, agentContainer(t))), At: j.RunDirAt})
		}
	case j.Image == "":
		return nil, fmt.Errorf("%w whose image could be used: --image names one", agents.ErrNoAgent)
	case pod.Namespace == "":
		return nil, fmt.Errorf("%w in whose namespace it could be: --agent-namespace names one", agents.ErrNoAgent)
	}
	for i, d := range j.Mounts {
		volume := fmt.Sprintf("host-%d", i)
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: d.Path, Type: new(corev1.HostPathDirectory)}}})
		run.VolumeMounts = append(run.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: cmp.Or(d.At, d.Path), ReadOnly: !d.Writable})
	}
	if j.Enters {
		run.SecurityContext.Capabilities.Add = slices.Clone(entering)
		if err := c.unconfined(pod, &run); err != nil {
			return nil, err
		}
	}
	pod.Spec.Containers = []corev1.Container{run}
	return pod, nil
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

// runDir is the agent's run directory, as the agent has it.
func runDir(id meshcni.Identity, agent *corev1.Container) string {
	for _, arg := range slices.Backward(agent.Args) {
		if dir, ok := strings.CutPrefix(arg, "--run-dir="); ok {
			return dir
		}
	}
	for _, e := range agent.Env {
		if e.Name == id.Env("run-dir") && e.Value != "" {
			return e.Value
		}
	}
	return id.RunDir
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

// onHost is the host's path of a directory of an agent. Of one that is not the host's it is a guess, by its name.
func onHost(agent *corev1.PodSpec, dir string) string {
	if host, _ := behind(mountsOf(agent, agentContainer(agent)), path.Clean(dir)); host != "" {
		return host
	}
	if rest, ok := strings.CutPrefix(dir, hostPrefix+"/"); ok {
		return "/" + rest
	}
	return dir
}

// hostPrefix is the place of the host's directories in our pods.
const hostPrefix = "/host"

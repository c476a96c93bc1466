package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/api/apilist"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
)

const (
	// askEvery is the interval of questions to the API server about a pod that starts.
	askEvery = 300 * time.Millisecond
	// oneWrite bounds a request that must not be given up halfway, since nobody would know then what it has made.
	oneWrite = 10 * time.Second
)

// image is a program with the command prove or look, as a node has it.
type image struct {
	name    string
	command []string // nil: the image's entry point
}

// shortLivedPod returns a pod for one node, past the scheduler and whatever its taints. It ends by itself after its lifetime, whatever
// becomes of the program that made it, and has no token.
func shortLivedPod(namespace, name, node string, lifetime, grace time.Duration, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			NodeName: node, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, RestartPolicy: corev1.RestartPolicyNever,
			ActiveDeadlineSeconds: new(int64(lifetime.Seconds())), TerminationGracePeriodSeconds: new(int64(grace.Seconds())),
			AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false), Containers: containers,
		},
	}
}

// shortLivedContainer runs a command of the agent's program as a user, as the strictest pod security standard wants it but for root.
func shortLivedContainer(name string, from image, user int64, args ...string) corev1.Container {
	return corev1.Container{
		Name: name, Image: from.name, ImagePullPolicy: corev1.PullIfNotPresent, Command: from.command, Args: args,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: &user, RunAsGroup: &user, RunAsNonRoot: new(user != 0), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
}

// create makes a pod. An interrupt does not cut the request off.
func (c *cluster) create(ctx context.Context, want *corev1.Pod) (*corev1.Pod, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	ctx, stop := uninterrupted(ctx)
	defer stop()
	made, err := c.client.CoreV1().Pods(want.Namespace).Create(ctx, want, metav1.CreateOptions{})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("make pod %s/%s on node %s: %w", want.Namespace, want.Name, want.Spec.NodeName, err)
	}
	return made, nil
}

// hopeless are the reasons of a waiting container that no time cures.
var hopeless = []string{"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError"}

// await reads a pod again and again until it is done. An error begins with missing, or names what has become of the pod.
func (c *cluster) await(ctx context.Context, pod *corev1.Pod, missing string, done func(now *corev1.Pod) (bool, error)) (*corev1.Pod, error) {
	for {
		now, err := c.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID:
			return nil, errors.New("somebody has deleted it")
		case apierrors.IsForbidden(err):
			return nil, err
		case err == nil && now.Status.Phase == corev1.PodFailed:
			return nil, c.why(ctx, now, errors.New("it has failed"))
		case err == nil && slices.ContainsFunc(containersOf(now), func(s corev1.ContainerStatus) bool {
			return s.State.Waiting != nil && slices.Contains(hopeless, s.State.Waiting.Reason)
		}):
			return nil, c.why(ctx, now, errors.New("it does not start"))
		case err == nil:
			var ok bool
			if ok, err = done(now); ok {
				return now, nil
			}
			pod = now
		}
		switch ended := kubectl.Wait(ctx, askEvery); {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return nil, c.why(ctx, pod, errors.Join(fmt.Errorf("%s: %w", missing, ended), err))
		case ended != nil:
			return nil, ended // the user does not wait for what the cluster says of it
		}
	}
}

// containersOf returns how a pod's containers are, in the order in which they start.
func containersOf(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

// why adds to an error what the cluster says of the pod: how its containers ended, and its last warning. It is asked even if the
// time is up.
func (c *cluster) why(ctx context.Context, pod *corev1.Pod, err error) error {
	texts := []string{err.Error()}
	if text := cmp.Or(pod.Status.Message, pod.Status.Reason); text != "" {
		texts = append(texts, text)
	}
	for _, s := range containersOf(pod) {
		switch w, end := s.State.Waiting, s.State.Terminated; {
		case end != nil:
			texts = append(texts, strings.TrimSpace(fmt.Sprintf("container %s has ended with code %d: %s", s.Name, end.ExitCode, end.Message)))
		case w != nil && w.Reason != "" && w.Reason != "ContainerCreating":
			texts = append(texts, fmt.Sprintf("container %s waits: %s: %s", s.Name, w.Reason, w.Message))
		}
	}
	ctx, stop := uninterrupted(ctx)
	defer stop()
	events, failed := c.events(ctx, pod.Namespace, fields.Set{"involvedObject.name": pod.Name, "type": corev1.EventTypeWarning})
	switch {
	case failed != nil:
		texts = append(texts, "its events are not known: "+failed.Error())
	case len(events) > 0:
		last := events[len(events)-1]
		texts = append(texts, "event "+last.Reason+": "+last.Message)
	}
	return errors.New(strings.ReplaceAll(strings.Join(texts, "; "), "\n", "; "))
}

// events lists events in the order of their times.
func (c *cluster) events(ctx context.Context, namespace string, about fields.Set) ([]corev1.Event, error) {
	list, err := c.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: about.String(), Limit: apilist.PageSize})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int { return when(&a).Compare(when(&b)) })
	return list.Items, nil
}

// when is an event's time.
func when(e *corev1.Event) time.Time {
	if at := e.LastTimestamp.Time; !at.IsZero() {
		return at
	}
	return e.EventTime.Time
}

// uninterrupted makes a context for a request that the first interrupt does not end. The second one does.
func uninterrupted(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(cli.Again(ctx), oneWrite, fmt.Errorf("no answer within %s", oneWrite))
}

// each calls f with every item, some at a time, and returns the results in order.
func each[T, R any](atOnce int, items []T, f func(i int, item T) R) []R {
	results := make([]R, len(items))
	var running errgroup.Group
	running.SetLimit(atOnce)
	for i, item := range items {
		running.Go(func() error {
			results[i] = f(i, item)
			return nil
		})
	}
	_ = running.Wait() // none returns an error
	return results
}

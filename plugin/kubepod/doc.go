// Package kubepod reads one pod from a Kubernetes API server, for a program that runs for a few milliseconds: a CNI plugin.
//
//	pods, err := kubepod.Open("/var/run/meshcni/kubeconfig")
//	if err != nil { … }
//	defer pods.Close()
//	pod, err := pods.Pod(ctx, "default", "web-0") // exactly one GET
//
// It never retries, has no rate limiter, follows no redirect and starts no process: the caller owns the retry
// policy and the deadline. Its Transient says which errors are worth another try.
//
// # Errors
//
// Causes stay wrapped. To tell them apart:
//
//	apierrors.IsNotFound(err)                          // no such pod (yet)
//	apierrors.IsForbidden(err)                         // RBAC: the service account may not read pods
//	apierrors.IsUnauthorized(err)                      // the token is wrong or has expired
//	d, ok := apierrors.SuggestsClientDelay(err)        // 429 and 503: Retry-After, in seconds
//	var c *kubepod.ConfigError; errors.As(err, &c)     // kubeconfig missing, unreadable or malformed (c.Path)
//	errors.Is(err, kubepod.ErrResponse)                // something that is no API server has answered
//	errors.Is(err, kubepod.ErrInvalidName)                    // a namespace or name that no object can have
//	errors.Is(err, context.DeadlineExceeded)           // ctx ran out: in DNS, dial, TLS, or waiting
//	pods.Transient(err)                                // worth another try
//
// # Environment
//
// A proxy is used if the kubeconfig names one (proxy-url), and no other: a plugin inherits HTTPS_PROXY and its like from its container
// runtime, where they are for images.
//
// # Cost
//
// A plugin is started for each pod, so this package links no client-go: it reads the kubeconfig itself, by clientcmd's rules, and
// makes its requests with net/http. Package client-go/kubernetes would make an 85 MB plugin that takes 37 ms to start; client-go's
// rest and clientcmd were 45 packages, 1.8 MB and 1,200 allocations at each start, and a fifth of its page faults. What is left are
// the types, k8s.io/api/core/v1, and net/http.
package kubepod

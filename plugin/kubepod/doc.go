// Package kubepod reads one pod from a Kubernetes API server, for a program that runs for a few milliseconds: a CNI plugin.
//
//	client, err := kubepod.Open("/var/run/meshcni/kubeconfig")
//	if err != nil { … }
//	defer client.Close()
//	pod, err := client.Pod(ctx, "default", "web-0") // exactly one GET
//
// A [Client] never retries, has no rate limiter, follows no redirect and starts no process: the caller owns the retry
// policy and the deadline. [Transient] says which errors are worth another try.
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
//	var r *kubepod.ResponseError; errors.As(err, &r)   // the server answered 200 with something else
//	errors.Is(err, kubepod.ErrName)                    // a namespace or name that no object can have
//	errors.Is(err, context.DeadlineExceeded)           // ctx ran out: in DNS, dial, TLS, or waiting
//	kubepod.Transient(err)                             // worth another try
//
// # Environment
//
// As in any client-go program, HTTPS_PROXY, HTTP_PROXY and NO_PROXY apply unless the kubeconfig names a proxy-url. A plugin
// inherits them from its container runtime, which therefore needs a NO_PROXY for the API server's address.
//
// # Cost
//
// Package client-go/kubernetes would link every API group: an 85 MB plugin that takes 37 ms to start. This package
// registers only Pod, Namespace and Status, and imports client-go's rest and clientcmd. Measured with -s -w -trimpath,
// static, on two cores (median of 200 starts that do nothing):
//
//	                                               MB   start-up ms
//	trivial Go program                            1.4       1.1
//	k8s.io/api/core/v1 alone                      9.5       2.3
//	with net/http, no client-go                  10.3       2.3
//	with client-go/rest                          13.7       2.6
//	with client-go/rest and clientcmd            13.9       2.7
//	this package                                 13.3       2.7
//
// The types cost most. A hand-written kubeconfig parser would save 0.1 ms and 0.2 MB, and would have to know relative
// paths, tokenFile, proxy-url, tls-server-name and impersonation. This package is smaller than the row above it because it
// brings its own transport and registers three types.
package kubepod

// Package envoy runs the real Envoy as a pod's sidecar: a static bootstrap in the shape of a mesh's, the process in the
// pod's network namespace as the proxy's user, and its access log.
//
// A [Shape] says how the mesh's proxy listens. The bootstrap has what redirection sees of such a proxy and no control
// plane, certificates or policy: what is not a configured service goes to its original destination.
//
//	.ci/envoy    puts the binary, which is fetched by version and digest, where [Binary] finds it
package envoy

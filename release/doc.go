// Command release makes what a release of meshcni consists of, without a Docker daemon: container images, archives, the
// chart, bills of materials, checksums. Whoever builds the same sources with the same version gets the same bytes.
//
//	make release
package main

module github.com/meshcni/meshcni/playground

go 1.26.0

require (
	github.com/meshcni/meshcni v0.0.0
	github.com/meshcni/meshcni/cmd v0.0.0
	github.com/stretchr/testify v1.12.1
	k8s.io/api v0.36.3
	k8s.io/apimachinery v0.36.3
	sigs.k8s.io/yaml v1.6.0
)

replace (
	github.com/meshcni/meshcni => ..
	github.com/meshcni/meshcni/cmd => ../cmd
	github.com/meshcni/meshcni/installer => ../installer
	github.com/meshcni/meshcni/nodeproxy => ../nodeproxy
	github.com/meshcni/meshcni/repair => ../repair
)

ignore ./node_modules

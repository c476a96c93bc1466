package conflist_test

import (
	"fmt"
	"testing/fstest"

	"github.com/meshcni/meshcni/conflist"
)

func ExampleInsert() {
	found := []byte(`{
  "name": "cbr0", "cniVersion": "1.0.0",
  "plugins": [
    {
      "type": "flannel"
    }
  ]
}`)
	with, err := conflist.Insert(found, []byte(`{"type": "meshcni", "dialect": "istio"}`))
	if err != nil {
		panic(err)
	}
	fmt.Println(string(with))

	back, _ := conflist.Remove(with, "meshcni")
	fmt.Println(string(back) == string(found))
	// Output:
	// {
	//   "name": "cbr0", "cniVersion": "1.0.0",
	//   "plugins": [
	//     {
	//       "type": "flannel"
	//     },
	//     {
	//       "type": "meshcni",
	//       "dialect": "istio"
	//     }
	//   ]
	// }
	// true
}

func ExamplePrimary() {
	dir := fstest.MapFS{ // os.DirFS("/etc/cni/net.d") on a node
		"05-cilium.conflist": {Data: []byte(`{"name": "cilium", "plugins": [`)},
		"10-flannel.conf":    {Data: []byte(`{"name": "cbr0", "type": "flannel"}`)},
	}
	choice, err := conflist.Primary(dir)
	if err != nil {
		panic(err)
	}
	fmt.Println(choice.Name, choice.File.Network())
	for _, s := range choice.Skipped {
		fmt.Println(s.Name, s.Err)
	}
	// Output:
	// 10-flannel.conf cbr0
	// 05-cilium.conflist no valid CNI configuration: line 1, column 31: unexpected end of JSON input
}

func ExampleToList() {
	list, err := conflist.ToList([]byte(`{"name": "cbr0", "type": "flannel", "delegate": {"mtu": 1450}}`))
	if err != nil {
		panic(err)
	}
	fmt.Println(string(list))
	// Output:
	// {"cniVersion":"0.3.1","name":"cbr0","plugins":[{"name": "cbr0", "type": "flannel", "delegate": {"mtu": 1450}}]}
}

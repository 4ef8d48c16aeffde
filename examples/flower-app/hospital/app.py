"""The two ends that Flower starts: nothing to change here."""

from fedstride.engine import flower
from hospital.task import load_data, load_test, make_model

project = flower.Project(model=make_model, loss="cross_entropy", data=load_data, test=load_test)
server = flower.server_app(project)
client = flower.client_app(project)
